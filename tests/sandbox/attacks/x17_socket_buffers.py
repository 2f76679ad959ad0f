# Attack: fills the buffers of sockets, which no process's memory shows
# Verdicts: memory_limit
# Reason: ^Stopped above 256 MB of memory\.$
# Limits: cpu_s=5 wall_s=8
import os
import socket
import time

for _ in range(30):
    if os.fork() == 0:
        held = []
        try:
            while True:
                held += (pair := socket.socketpair())
                for one in pair:
                    one.setblocking(False)
                    try:
                        while True:
                            one.send(b"x" * 65536)
                    except BlockingIOError:
                        pass
        except OSError:
            time.sleep(60)
time.sleep(60)
