# Attack: the submission is a device
# Verdicts: runtime_error
# Submission: <none>
# Errors: PermissionError
# Cheap: yes
import os

os.mknod("submission.csv", 0o020666, os.makedev(1, 5))
