# Attack: a child swaps the submission for a link to the answers while it is collected
# Verdicts: ok
# Submission: mine||<none>
# Cheap: yes
import json
import os
import sys
import time

facts = json.load(sys.stdin)
if os.fork() == 0:
    os.setsid()
    while True:
        with open("new", "w") as file:
            file.write("mine")
        os.replace("new", "submission.csv")
        os.symlink(facts["answers"], "link")
        os.replace("link", "submission.csv")
time.sleep(0.05)
