# Attack: reads its input for ever, past its end
# Verdicts: timeout
# Limits: cpu_s=0.5 wall_s=2
import sys

print("begun", flush=True)
while True:
    sys.stdin.read(1)
