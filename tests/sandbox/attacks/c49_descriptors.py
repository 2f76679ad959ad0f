# Attack: looks for descriptors that were left open
# Verdicts: ok
# Prints: ^found \[\]$
# Cheap: yes
import os

found = []
for fd in range(3, 70000):
    try:
        found.append((fd, os.fstat(fd)))
    except OSError:
        pass
print("found", found)
