# Attack: a submission, in a folder, that nobody may read
# Verdicts: ok
# Submission: mine|<none>
# Cheap: yes
import os

with open("submission.csv", "w") as file:
    file.write("mine")
os.chmod("submission.csv", 0)
os.chmod(".", 0)
