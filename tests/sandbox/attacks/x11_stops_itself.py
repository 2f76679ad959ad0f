# Attack: stops itself and all of its group
# Verdicts: timeout
# Limits: wall_s=0.6
# Prints: ^before$
import os
import signal

print("before", flush=True)
os.killpg(0, signal.SIGSTOP)
