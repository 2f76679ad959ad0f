# Attack: SIGKILL to everybody, to its parent, to pid 1, to a process outside and to many more
# Verdicts: ok
# Prints: ^alive$
# Cheap: yes
import json
import os
import sys

facts = json.load(sys.stdin)
for pid in (-1, 1, os.getppid(), facts["pid"], *range(2, 300)):
    if pid != os.getpid():
        try:
            os.kill(pid, 9)
        except OSError:
            pass
print("alive")
