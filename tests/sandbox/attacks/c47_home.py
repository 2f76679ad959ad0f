# Attack: the home, passwords, keys, tokens and histories
# Verdicts: ok
# Prints: ^end$
# Cheap: yes
import glob
import json
import os
import sys

facts = json.load(sys.stdin)
home = facts["home"]
paths = [home + "/" + name for name in (".bashrc", ".profile", ".ssh", ".netrc", ".bash_history", ".python_history")]
paths += [home + "/.local/share/jupyter/runtime", home + "/.config", home + "/.gitconfig", facts["in_home"]]
paths += ["/etc/shadow", "/etc/passwd", "/etc/hosts", "/etc/hostname", "/var/log", "/run", facts["repository"] + "/data"]
for path in paths:
    try:
        print(path, "SUCCESS", os.listdir(path) if os.path.isdir(path) else open(path).read())
    except OSError:
        pass
for pattern in ("/home/*/.*", "/root/.local/share/jupyter/runtime/*", "/run/user/*", "/tmp/pytest*"):
    for found in glob.glob(pattern):
        print(found, "SUCCESS")
print("end")
