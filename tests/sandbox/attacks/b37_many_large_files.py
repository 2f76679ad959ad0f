# Attack: files until the folder is full, in every folder it may write
# Verdicts: ok
# Limits: files_mb=16
# Prints: ^refused 3$
# Cheap: yes
refused = 0
for folder in (".", "/tmp", "/dev/shm"):
    try:
        for number in range(100):
            with open(f"{folder}/attack-{number}", "wb") as file:
                file.write(b"x" * 10**6)
    except OSError:
        refused += 1
print("refused", refused)
