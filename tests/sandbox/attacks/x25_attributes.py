# Attack: attributes, owners, times and modes, of its own files and of the input
# Verdicts: ok
# Prints: ^end$
# Cheap: yes
import json
import os
import sys

facts = json.load(sys.stdin)
with open("own", "w") as file:
    file.write("x")
for path in ("own", "./input/train.csv", "./input", facts["folder"], facts["secret"]):
    actions = [lambda: os.setxattr(path, "user.x", b"x" * 60000), lambda: os.setxattr(path, "security.capability", b"x" * 20), lambda: os.chown(path, 0, 0)]
    if path != "own":
        actions += [lambda: os.utime(path, (0, 0)), lambda: os.chmod(path, 0o777), lambda: os.truncate(path, 0)]
    for action in actions:
        try:
            action()
            print(path, "SUCCESS")
        except OSError:
            pass
os.chmod("own", 0o6755)
print("end")
