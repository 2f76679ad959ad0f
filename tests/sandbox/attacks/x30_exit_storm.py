# Attack: threads, exit handlers and fault handlers that go on while it ends
# Verdicts: ok runtime_error timeout
# Limits: cpu_s=0.6 wall_s=1.5
import atexit
import faulthandler
import os
import threading

faulthandler.enable()
faulthandler.dump_traceback_later(0.05, repeat=True)


def more():
    for _ in range(10**9):
        print("x", end="")
        os.urandom(10)


for _ in range(5):
    threading.Thread(target=more, daemon=True).start()
atexit.register(lambda: [atexit.register(more), threading.Thread(target=more, daemon=True).start()])
