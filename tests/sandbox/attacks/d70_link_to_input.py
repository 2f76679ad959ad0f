# Attack: the submission is a link to the input
# Verdicts: ok
# Submission: <none>
# Reason: symbolic link, expected a plain file
# Cheap: yes
import os

os.symlink("./input/train.csv", "submission.csv")
