# Attack: byte arrays until memory is refused; hides the error and fails
# Verdicts: memory_limit
# Prints: ^begun$
# Cheap: yes
import sys

print("begun", flush=True)
held = []
try:
    while True:
        held.append(b"x" * 10**6)
except MemoryError:
    sys.exit(1)
