# Attack: starts programs by vfork for ever
# Verdicts: timeout
# Prints: \Abegun\n\Z
# Reason: of CPU time|of wall time
# Limits: cpu_s=0.6 wall_s=1.5
import os

print("begun", flush=True)
while True:
    try:
        os.posix_spawn("/bin/true", ["true"], {})
    except OSError:
        pass
