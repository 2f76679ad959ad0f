# Attack: many children with many open files, all of which the supervisor looks at
# Verdicts: timeout
# Limits: cpu_s=3 wall_s=1.5
# Prints: ^(5|6)\d$
import os
import time

children = 0
try:
    while True:
        if os.fork() == 0:
            held = []
            try:
                while True:
                    held.append(os.open("/dev/null", os.O_RDONLY))
            except OSError:
                time.sleep(60)
        children += 1
except OSError:
    print(children, flush=True)
time.sleep(60)
