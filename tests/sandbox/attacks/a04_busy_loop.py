# Attack: busy loop
# Verdicts: timeout
# Limits: cpu_s=0.5 wall_s=3
# Reason: of CPU time|of wall time
print("begun", flush=True)
while True:
    pass
