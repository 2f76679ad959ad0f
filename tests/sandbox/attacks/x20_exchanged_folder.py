# Attack: moves, exchanges and removes the folder it works in, and its input
# Verdicts: ok
# Machine: x86_64
# Prints: ^end$
# Cheap: yes
import ctypes
import os
import shutil

libc = ctypes.CDLL(None, use_errno=True)
here = os.getcwd().encode()
os.mkdir("other")
for one in (here, b"/tmp", b"/dev/shm", b"input", b"/"):
    for other in (b"other", b"/dev/shm/other", b"/tmp/other", here):
        if libc.syscall(316, -100, one, -100, other, 2) == 0 or libc.syscall(316, -100, one, -100, other, 0) == 0:
            print(one, other, "SUCCESS" if one != other else "")
try:
    os.rename(here, here + b"2")
    print("SUCCESS")
except OSError:
    pass
shutil.rmtree(here, ignore_errors=True)
try:
    os.rmdir(here)
    print("SUCCESS")
except OSError:
    print("end")
