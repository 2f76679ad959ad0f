# Attack: endless recursion without Python's limit, whose frames fill its memory
# Verdicts: runtime_error memory_limit
# Limits: cpu_s=5 wall_s=15 memory_mb=32
# Prints: ^begun$
# Errors: ^(MemoryError|SystemError: error return without exception set)
import sys

sys.setrecursionlimit(10**9)


def deeper(n):
    return deeper(n + 1) + 1


print("begun", flush=True)
deeper(0)
