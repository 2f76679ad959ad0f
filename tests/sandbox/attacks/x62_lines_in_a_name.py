# Attack: a name that makes a line of its own where the kernel lists memory and descriptors
# Verdicts: timeout
# Limits: cpu_s=1 wall_s=1.5
# Prints: ^begun$
import ctypes
import os
import time

print("begun", flush=True)
for name in (b"\rRssAnon:\tx", b"\rRssAnon:\t", b"\rFDSize:\tx", b"\rFDSize:\t0", b"\n) R 1 1"):
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(15, name, 0, 0, 0)
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
        time.sleep(60)
ctypes.CDLL(None).prctl(15, b"\rRssAnon:\tx", 0, 0, 0)
while True:
    pass
