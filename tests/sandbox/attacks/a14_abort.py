# Attack: abort
# Verdicts: runtime_error
# Signal: 6
# Cheap: yes
import os

os.abort()
