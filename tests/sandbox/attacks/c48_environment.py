# Attack: prints its environment and those of others
# Verdicts: ok
# Prints: ^end$
# Never prints: SUCCESS|WORKBENCH|PYTEST|USER=|SSH_|TOKEN
# Cheap: yes
import ctypes
import glob
import json
import os
import sys

facts = json.load(sys.stdin)
print(dict(os.environ))
environ = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
number = 0
while environ and environ[number]:
    print(environ[number])
    number += 1
pids = ["self", "1", os.getpid(), os.getppid(), facts["pid"]]
for path in [f"/proc/{pid}/environ" for pid in pids] + glob.glob("/proc/[0-9]*/*"):
    try:
        print(path, "SUCCESS", open(path, "rb").read())
    except OSError:
        pass
print("end")
