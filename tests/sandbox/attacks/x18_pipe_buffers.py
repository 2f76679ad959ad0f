# Attack: pipes as large as they may be, filled: how many pages are in pipes is limited for each user
# Verdicts: ok
# Prints: ^filled \d+$
import fcntl
import os
import time

filled = 0
try:
    while True:
        read, write = os.pipe()
        try:
            fcntl.fcntl(write, 1031, 2**20)  # F_SETPIPE_SZ
        except OSError:
            pass
        os.set_blocking(write, False)
        try:
            while True:
                filled += os.write(write, b"x" * 65536)
        except BlockingIOError:
            pass
except OSError:
    print("filled", filled, flush=True)
time.sleep(0.2)
