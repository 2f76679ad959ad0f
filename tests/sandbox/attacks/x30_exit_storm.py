# Attack: threads and exit handlers that go on, and make more of themselves, while it ends
# Verdicts: ok
# Limits: output_kb=10000
# Prints: (?s)\Abegun\n.*last words\n
# Cheap: yes
import atexit
import os
import threading


def more():
    while True:
        print("x", end="")
        os.urandom(10)


def last():
    atexit.register(last)
    threading.Thread(target=more, daemon=True).start()
    print("\nlast words")


print("begun", flush=True)
for _ in range(5):
    threading.Thread(target=more, daemon=True).start()
atexit.register(last)
