# Attack: leaves files wherever it can
# Verdicts: ok
# Prints: ^left [3-9]$
# Cheap: yes
import tempfile

left = 0
for folder in (".", "/tmp", "/dev/shm", "/var/tmp", "/run", tempfile.gettempdir()):
    try:
        with open(f"{folder}/attack-left", "w") as file:
            left += file.write("x")
    except OSError:
        pass
print("left", left)
