# Attack: memory layout, keeping capabilities, secure bits, adopting orphans, no signal at the parent's death
# Verdicts: ok
# Prints: ^end$
# Cheap: yes
import ctypes
import os
import time

libc = ctypes.CDLL(None, use_errno=True)
for option, value in ((35, 6), (8, 1), (28, 0x2F), (23, 21), (24, 21), (47, 2)):
    result = libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(21), 0, 0)
    if result == 0 and option not in (8,):
        print(option, "SUCCESS" if option in (35, 28) else result)
libc.prctl(1, 0, 0, 0, 0)
libc.prctl(36, 1, 0, 0, 0)
if os.fork() == 0:
    libc.prctl(1, 0, 0, 0, 0)
    if os.fork() == 0:
        time.sleep(60)
    os._exit(0)
try:
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("-1000")
    print("SUCCESS")
except OSError:
    pass
print("end")
