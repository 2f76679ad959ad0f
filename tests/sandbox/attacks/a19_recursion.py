# Attack: endless recursion without Python's limit
# Verdicts: runtime_error timeout memory_limit
# Limits: cpu_s=1 wall_s=4
import sys

sys.setrecursionlimit(10**9)


def deeper(n):
    return deeper(n + 1) + 1


deeper(0)
