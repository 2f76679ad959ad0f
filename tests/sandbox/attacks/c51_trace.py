# Attack: traces, and reads the memory of, its parent and a process outside
# Verdicts: ok
# Machine: x86_64
# Prints: \A(\w+ \d+ refused\n){10}\Z
# Cheap: yes
import ctypes
import json
import os
import sys

facts = json.load(sys.stdin)
libc = ctypes.CDLL(None, use_errno=True)
PTRACE, READV, WRITEV, GETFD, OPEN = 101, 310, 311, 438, 434


def call(name, *arguments):
    result = libc.syscall(*map(ctypes.c_long, arguments))
    print(*name, "SUCCESS" if result >= 0 else "refused")


for pid in (os.getppid(), facts["pid"]):
    call(("attach", pid), PTRACE, 16, pid, 0, 0)
    call(("seize", pid), PTRACE, 0x4206, pid, 0, 0)
    call(("read", pid), READV, pid, 0, 0, 0, 0, 0)
    call(("write", pid), WRITEV, pid, 0, 0, 0, 0, 0)
    call(("descriptor", pid), GETFD, 0, 0, 0)
