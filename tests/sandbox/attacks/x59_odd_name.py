# Attack: a name of bytes that are no text, where those who look on read it
# Verdicts: timeout
# Limits: cpu_s=1 wall_s=1
# Prints: ^begun$
import ctypes
import os
import time

ctypes.CDLL(None).prctl(15, b"\xff) \xfe", 0, 0, 0)
print("begun", flush=True)
if os.fork() == 0:
    while True:
        pass
time.sleep(60)
