# Attack: a submission above what is wanted
# Verdicts: ok
# Collect: 1999
# Submission: <none>
# Reason: has 2000 bytes, which is too large: expected at most 1999
# Cheap: yes
with open("submission.csv", "w") as file:
    file.write("x" * 2000)
