# Attack: ignores every signal it can, then loops
# Verdicts: timeout
# Prints: \Abegun\n\Z
# Reason: after 0.5 s of CPU time|after 2 s of wall time
# Limits: cpu_s=0.5 wall_s=2
import signal

print("begun", flush=True)
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
while True:
    pass
