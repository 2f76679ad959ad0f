# Attack: binds names that other runs would see
# Verdicts: ok
# Prints: ^end$
# Cheap: yes
import socket

for name in ("\0abstract", "named", "/tmp/named", "/dev/shm/named"):
    for pair in (lambda: socket.socket(socket.AF_UNIX), lambda: socket.socketpair()[0]):
        try:
            pair().bind(name)
            print(repr(name), "SUCCESS")
        except OSError:
            pass
        try:
            pair().connect(name)
            print(repr(name), "SUCCESS")
        except OSError:
            pass
print("end")
