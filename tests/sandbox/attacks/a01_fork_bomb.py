# Attack: fork bomb that swallows errors
# Verdicts: timeout
# Limits: cpu_s=0.6 wall_s=1.5
import os

print("begun", flush=True)
while True:
    try:
        os.fork()
    except OSError:
        pass
