# Attack: fills a shared anonymous map
# Verdicts: memory_limit
# Limits: cpu_s=5 wall_s=8
# Prints: ^begun$
import mmap

print("begun", flush=True)
size = 600 * 2**20
shared = mmap.mmap(-1, size)
for start in range(0, size, 2**20):
    shared[start : start + 2**20] = b"x" * 2**20
