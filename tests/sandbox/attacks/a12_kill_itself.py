# Attack: SIGKILL to itself
# Verdicts: runtime_error
# Signal: 9
# Prints: ^before$
# Cheap: yes
import os

print("before", flush=True)
os.kill(os.getpid(), 9)
