# Attack: asks for a core dump of a large image
# Verdicts: runtime_error
# Signal: 6
# Never prints: raised
import os
import resource

try:
    resource.setrlimit(resource.RLIMIT_CORE, (-1, -1))
    print("raised", flush=True)
except (OSError, ValueError):
    pass
held = b"x" * (150 * 2**20)
os.abort()
