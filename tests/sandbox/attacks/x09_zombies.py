# Attack: children that end and are never waited for
# Verdicts: ok
# Prints: ^stopped at (59|6\d)$
# Cheap: yes
import os

count = 0
try:
    while True:
        if os.fork() == 0:
            os._exit(0)
        count += 1
except OSError:
    print("stopped at", count)
