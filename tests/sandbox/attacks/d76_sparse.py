# Attack: a submission of 2 GB with nothing in it
# Verdicts: runtime_error
# Submission: (?s).{0,67108864}
# Errors: OSError
# Cheap: yes
with open("submission.csv", "wb") as file:
    file.truncate(2 * 2**30)
