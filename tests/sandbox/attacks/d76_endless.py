# Attack: a submission without end
# Verdicts: runtime_error
# Limits: files_mb=8
# Errors: OSError
# Cheap: yes
with open("submission.csv", "wb") as file:
    while True:
        file.write(b"x" * 10**6)
