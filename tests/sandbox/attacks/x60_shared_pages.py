# Attack: memory that is private to nobody, since whoever filled it forked afterwards
# Verdicts: memory_limit
# Reason: ^Stopped above 256 MB of memory\.$
# Limits: cpu_s=8 wall_s=12
import os
import time

for _ in range(10):
    if os.fork() == 0:
        held = b"x" * (120 * 2**20)
        os.fork()
        time.sleep(60)
    time.sleep(0.3)
time.sleep(60)
