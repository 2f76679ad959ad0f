# Attack: hands on descriptors without end: how many are on their way is limited for each user, all runs together
# Verdicts: ok
# Prints: ^handed on 0$
import array
import socket
import time

handed, held = 0, []
try:
    while True:
        held += (pair := socket.socketpair())
        for _ in range(100):
            pair[0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0] * 50))])
            handed += 50
except OSError:
    print("handed on", handed, flush=True)
time.sleep(0.3)
