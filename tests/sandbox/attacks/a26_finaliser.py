# Attack: a finaliser that sleeps when the program's names are cleared
# Verdicts: timeout
# Limits: wall_s=0.6
# Prints: ^done$
import time


class Sleeper:
    def __del__(self, sleep=time.sleep):
        sleep(1000)


sleeper = Sleeper()
print("done", flush=True)
