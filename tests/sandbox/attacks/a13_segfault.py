# Attack: segmentation fault through ctypes
# Verdicts: runtime_error
# Signal: 11
# Cheap: yes
import ctypes

ctypes.string_at(0)
