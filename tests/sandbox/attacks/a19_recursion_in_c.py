# Attack: endless recursion without Python's limit, through the interpreter's own stack
# Verdicts: runtime_error
# Prints: ^begun$
# Reason: signal 11|^RecursionError
# Cheap: yes
import sys

sys.setrecursionlimit(10**9)


class Deeper:
    def __getattr__(self, name):
        return getattr(self, name)


print("begun", flush=True)
Deeper().more
