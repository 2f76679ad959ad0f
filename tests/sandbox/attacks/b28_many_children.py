# Attack: 20 children fill 200 MB each
# Verdicts: memory_limit
# Limits: cpu_s=5 wall_s=8
# Prints: ^begun$
import os
import time

print("begun", flush=True)
for _ in range(20):
    if os.fork() == 0:
        held = b"x" * (200 * 2**20)
        time.sleep(60)
time.sleep(60)
