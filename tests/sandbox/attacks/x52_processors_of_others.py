# Attack: other processors and priorities for itself, its init, everybody and a process outside
# Verdicts: ok
# Prints: ^end$
# Cheap: yes
import json
import os
import sys

facts = json.load(sys.stdin)
for pid in (1, os.getppid(), facts["pid"]):
    for action in (
        lambda: os.sched_setaffinity(pid, {0}),
        lambda: os.setpriority(os.PRIO_PROCESS, pid, 19),
        lambda: os.setpriority(os.PRIO_PGRP, pid, 19),
        lambda: os.setpriority(os.PRIO_USER, 0, 19),
        lambda: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0)),
        lambda: os.setpriority(os.PRIO_PROCESS, 0, -5),
    ):
        try:
            action()
            print(pid, "SUCCESS")
        except OSError:
            pass
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
os.nice(3)
print("end")
