# Attack: a system call of the x32 interface
# Verdicts: runtime_error
# Machine: x86_64
# Signal: 31
# Cheap: yes
import ctypes

print("SUCCESS", ctypes.CDLL(None).syscall(ctypes.c_long(0x4000_0000 | 39)), flush=True)
