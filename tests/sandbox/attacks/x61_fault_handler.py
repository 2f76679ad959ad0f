# Attack: Python's own watchdog ends it while it waits at exit for threads that sleep
# Verdicts: runtime_error
# Prints: ^before$
# Errors: Timeout \(0:00:00\.\d+\)!\n(.|\n)*most recent call first
import faulthandler
import threading
import time

print("before", flush=True)
faulthandler.enable()
for _ in range(5):
    threading.Thread(target=time.sleep, args=(1000,)).start()
faulthandler.dump_traceback_later(0.3, exit=True)
