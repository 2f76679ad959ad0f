# Attack: becomes itself anew for ever
# Verdicts: timeout
# Limits: cpu_s=0.6 wall_s=2
# Prints: ^begun$
import os
import sys

print("begun", flush=True)
os.execv(sys.executable, [sys.executable, "-S", "-E", "script.py"])
