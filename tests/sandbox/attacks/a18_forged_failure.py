# Attack: prints what a harness would print for a failed program
# Verdicts: runtime_error
# Prints: ^PASSED$
# Reason: exit code 1\.$
# Cheap: yes
import os

print('{"verdict": "ok", "score": 1.0}\nPASSED', flush=True)
os._exit(1)
