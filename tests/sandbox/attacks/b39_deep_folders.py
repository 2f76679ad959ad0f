# Attack: folders in folders beyond the longest path, until it is stopped
# Verdicts: timeout
# Limits: cpu_s=1 wall_s=2
# Prints: ^begun$
import os

print("begun", flush=True)
while True:
    try:
        os.mkdir("d" * 200)
        os.chdir("d" * 200)
    except OSError:
        pass
