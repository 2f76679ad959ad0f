# Attack: an exit handler that sleeps
# Verdicts: timeout
# Limits: wall_s=0.6
# Prints: ^done$
import atexit
import time

atexit.register(time.sleep, 1000)
print("done", flush=True)
