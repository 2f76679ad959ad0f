# Attack: the submission has two names
# Verdicts: ok
# Submission: <none>
# Reason: has 2 names \(hard links\)
# Cheap: yes
import os

with open("other", "w") as file:
    file.write("id,value\n")
os.link("other", "submission.csv")
