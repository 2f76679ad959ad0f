# Attack: locks and leases on the files that all runs share, and very many locks on its own
# Verdicts: ok
# Prints: ^end$
import fcntl
import os
import struct
import time

shared = os.open("./input/train.csv", os.O_RDONLY)
for operation in (lambda: fcntl.flock(shared, fcntl.LOCK_EX), lambda: fcntl.fcntl(shared, 1024, 0), lambda: fcntl.lockf(shared, fcntl.LOCK_SH)):
    try:
        operation()
    except OSError:
        pass
own = os.open("own", os.O_RDWR | os.O_CREAT)
until = time.monotonic() + 0.4
start = 0
while time.monotonic() < until:
    try:
        fcntl.fcntl(own, fcntl.F_SETLK, struct.pack("hhqqi", fcntl.F_WRLCK, 0, start, 1, 0))
    except OSError:
        break
    start += 2
print("end")
