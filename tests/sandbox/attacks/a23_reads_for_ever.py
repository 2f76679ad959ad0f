# Attack: reads its input for ever, past its end
# Verdicts: timeout
# Prints: \Abegun\n\Z
# Reason: after 0.5 s of CPU time|after 2 s of wall time
# Limits: cpu_s=0.5 wall_s=2
import sys

print("begun", flush=True)
while True:
    sys.stdin.read(1)
