# Attack: links to the answers, to the processes, to the root and to itself
# Verdicts: ok
# Submission: <none>
# Reason: symbolic link, expected a plain file
# Cheap: yes
import json
import os
import sys

facts = json.load(sys.stdin)
os.symlink("/", "root")
os.symlink("/proc/self/environ", "environ")
os.symlink("loop", "loop")
os.symlink(facts["answers"], "submission.csv")
