# Attack: sleep without CPU
# Verdicts: timeout
# Limits: wall_s=0.6
# Reason: after 0.6 s of wall time
import time

print("begun", flush=True)
time.sleep(1000)
