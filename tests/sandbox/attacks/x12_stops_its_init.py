# Attack: stops, continues and ends those that watch over it, by process, group, thread and descriptor
# Verdicts: ok
# Prints: ^end$
# Cheap: yes
import ctypes
import os
import signal
import time

libc = ctypes.CDLL(None, use_errno=True)
for number in (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTERM, signal.SIGSEGV, signal.SIGKILL, signal.SIGCHLD):
    for pid in {1, os.getppid(), -1, -os.getpgid(1)} - {0, -os.getpgrp()}:
        try:
            os.kill(pid, number)
        except OSError:
            pass
    libc.tgkill(os.getppid(), os.getppid(), int(number))
    try:
        signal.pidfd_send_signal(os.pidfd_open(os.getppid()), number)
    except OSError:
        pass
time.sleep(0.05)
print("end")
