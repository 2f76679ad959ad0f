# Attack: every number of a system call, with arguments that mean nothing
# Verdicts: ok runtime_error timeout
# Machine: x86_64
# Limits: cpu_s=1 wall_s=2
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
WAIT = {23, 34, 35, 61, 60, 231, 230, 270, 271, 7, 130, 128, 232, 281, 202, 15, 0, 3, 436, 219, 56, 57, 58, 37, 38}
for number in range(470):
    if number not in WAIT:
        pid = os.fork()
        if pid == 0:
            libc.syscall(*map(ctypes.c_long, (number, -1, -1, -1, -1, -1, -1)))
            libc.syscall(*map(ctypes.c_long, (number, 0, 0, 0, 0, 0, 0)))
            os._exit(0)
        os.waitpid(pid, 0)
