# Attack: takes every right from its folders
# Verdicts: ok
# Submission: mine|<none>
# Cheap: yes
import os
import tempfile

with open("submission.csv", "w") as file:
    file.write("mine")
for folder in (tempfile.gettempdir(), "/dev/shm", "."):
    try:
        os.chmod(folder, 0)
    except OSError:
        pass
