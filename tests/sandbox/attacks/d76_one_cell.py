# Attack: a submission that is one cell of 60 MB
# Verdicts: ok
# Collect: 10000000
# Submission: <none>
# Reason: too large
with open("submission.csv", "wb") as file:
    file.write(b"x" * 60_000_000)
