# Attack: the submission is a second name of the input
# Verdicts: runtime_error
# Submission: <none>
# Errors: OSError|PermissionError
# Cheap: yes
import os

os.link("./input/train.csv", "submission.csv")
