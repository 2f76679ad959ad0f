# Attack: the submission is a link to itself
# Verdicts: ok
# Submission: <none>
# Reason: symbolic link, expected a plain file
# Cheap: yes
import os

os.symlink("submission.csv", "submission.csv")
