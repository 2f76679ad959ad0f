# Attack: folders in folders beyond the longest path, until an error
# Verdicts: runtime_error timeout
# Limits: cpu_s=1 wall_s=2
# Prints: ^begun$
import os

print("begun", flush=True)
while True:
    os.mkdir("d" * 200)
    os.chdir("d" * 200)
