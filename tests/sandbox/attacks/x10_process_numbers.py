# Attack: uses up numbers of processes, children that end at once
# Verdicts: timeout
# Prints: \Abegun\n\Z
# Reason: of CPU time|of wall time
# Limits: cpu_s=0.6 wall_s=1.5
import os
import signal

print("begun", flush=True)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    try:
        if os.fork() == 0:
            os._exit(0)
    except OSError:
        pass
