# Attack: the submission is a socket
# Verdicts: ok
# Submission: <none>
# Reason: unreadable
# Prints: ^refused$
# Cheap: yes
import os
import socket

os.mknod("submission.csv", 0o140666)
try:
    socket.socketpair()[0].bind("other")
    print("SUCCESS")
except OSError:
    print("refused")
