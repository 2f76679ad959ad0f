# Attack: writes to the system, to libraries, to the data and to folders that everybody may write outside
# Verdicts: ok
# Prints: ^end$
# Cheap: yes
import json
import os
import shutil
import sys

facts = json.load(sys.stdin)
for folder in ("/", "/usr", "/usr/lib", "/etc", "/box", "/data", "/proc", "/var/tmp", "/run", sys.prefix, facts["folder"]):
    try:
        open(os.path.join(folder, "attack"), "w")
        print(folder, "SUCCESS")
    except OSError:
        pass
for library in (os.__file__, json.__file__, facts["secret"], "./input/train.csv", "/box/zygote.py"):
    try:
        open(library, "a")
        print(library, "SUCCESS")
    except OSError:
        pass
for path in (facts["secret"], "./input/train.csv"):
    for action in (os.remove, lambda path: os.rename(path, "moved"), lambda path: os.chmod(path, 0o777)):
        try:
            action(path)
            print(path, "SUCCESS")
        except OSError:
            pass
shutil.rmtree(facts["folder"], ignore_errors=True)
shutil.rmtree("./input", ignore_errors=True)
print("end")
