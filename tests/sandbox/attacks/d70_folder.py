# Attack: the submission is a folder
# Verdicts: ok
# Submission: <none>
# Reason: is not a regular file
# Cheap: yes
import os

os.mkdir("submission.csv")
