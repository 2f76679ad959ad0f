# Attack: threads until the limit of tasks
# Verdicts: ok
# Limits: processes=40
# Prints: ^stopped at (3\d|40)$
# Cheap: yes
import threading
import time

count = 0
try:
    while True:
        threading.Thread(target=time.sleep, args=(99,), daemon=True).start()
        count += 1
except RuntimeError:
    print("stopped at", count)
