# Attack: writes one file until there is no room
# Verdicts: runtime_error
# Limits: files_mb=16
# Errors: OSError
# Cheap: yes
with open("large", "wb") as file:
    while True:
        file.write(b"x" * 10**6)
