# Attack: prints after its output was closed, replaced and given away
# Verdicts: runtime_error
# Prints: ^before$
# Cheap: yes
import os

print("before", flush=True)
null = os.open("/dev/null", os.O_RDONLY)
os.dup2(null, 1)
os.dup2(null, 0)
for fd in range(3, 256):
    try:
        os.dup2(2, fd)
    except OSError:
        break
print("after", flush=True)
