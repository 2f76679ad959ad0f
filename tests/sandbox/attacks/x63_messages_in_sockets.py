# Attack: sockets of messages, of which each holds more than its buffer's size
# Verdicts: ok
# Prints: ^refused 2$
# Cheap: yes
import socket

refused = 0
for kind in (socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
    try:
        socket.socketpair(socket.AF_UNIX, kind)
    except OSError:
        refused += 1
socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
print("refused", refused)
