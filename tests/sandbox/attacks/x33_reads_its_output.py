# Attack: reads what it printed before, and writes to its input
# Verdicts: ok
# Prints: ^printed$
# Cheap: yes
import os

print("printed", flush=True)
for action in (lambda: os.read(1, 10), lambda: os.read(2, 10), lambda: os.write(0, b"x"), lambda: os.ftruncate(0, 0), lambda: os.lseek(1, 0, 0)):
    try:
        action()
        print("SUCCESS")
    except OSError:
        pass
