# Attack: a child daemonises, the parent ends
# Verdicts: ok
# Prints: ^done$
# Cheap: yes
import os
import time

if os.fork() == 0:
    os.setsid()
    time.sleep(60)
print("done")
