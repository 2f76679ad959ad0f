# Attack: the submission is a pipe
# Verdicts: ok
# Submission: <none>
# Reason: is not a regular file
# Cheap: yes
import os

os.mkfifo("submission.csv")
