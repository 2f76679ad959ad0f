# Attack: a thread that is waited for at exit
# Verdicts: timeout
# Limits: wall_s=0.6
# Prints: ^done$
import threading
import time

threading.Thread(target=time.sleep, args=(1000,)).start()
print("done", flush=True)
