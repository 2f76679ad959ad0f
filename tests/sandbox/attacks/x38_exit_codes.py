# Attack: exit codes of many kinds, in children; its own is none
# Verdicts: ok
# Prints: ^\[126, 127, 128, 0, 255, 255, 137\]$
# Cheap: yes
import os
import sys

found = []
for code in (126, 127, 128, 256, -1, 2**40 - 1, 137):
    if (pid := os.fork()) == 0:
        sys.exit(code) if code < 2**31 else os._exit(code & 0xFFFF)
    found.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
print(found)
