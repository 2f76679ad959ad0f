# Attack: sets the machine's clocks, fakes its own and goes on
# Verdicts: timeout
# Limits: cpu_s=0.5 wall_s=2
# Prints: ^refused\nrefused$
import time

for clock in (time.CLOCK_REALTIME, time.CLOCK_MONOTONIC):
    try:
        time.clock_settime(clock, 0)
        print("SUCCESS", flush=True)
    except OSError:
        print("refused", flush=True)
time.time = time.monotonic = time.process_time = lambda: 0.0
while True:
    pass
