# Attack: a grandchild without streams outlives all
# Verdicts: ok
# Prints: ^done$
# Within: 2
# Cheap: yes
import os
import time

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in (0, 1, 2):
            os.close(fd)
        time.sleep(60)
    os._exit(0)
os.wait()
print("done")
