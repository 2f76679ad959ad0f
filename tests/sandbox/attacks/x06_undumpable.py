# Attack: forbids others to look at its memory, then fills it in children
# Verdicts: memory_limit
# Reason: ^Stopped above 256 MB of memory\.$
# Limits: cpu_s=5 wall_s=8
import ctypes
import os
import time

for _ in range(8):
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
        held = b"x" * (100 * 2**20)
        time.sleep(60)
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
time.sleep(60)
