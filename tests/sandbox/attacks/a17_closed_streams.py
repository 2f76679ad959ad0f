# Attack: closes its streams, then sleeps
# Verdicts: timeout
# Limits: wall_s=0.6
# Prints: ^before$
import os
import time

print("before", flush=True)
for fd in (0, 1, 2):
    os.close(fd)
time.sleep(1000)
