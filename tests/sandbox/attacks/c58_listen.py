# Attack: listens, on every kind of socket
# Verdicts: ok
# Prints: ^end$
# Cheap: yes
import socket

kinds = [(socket.AF_INET, 1), (socket.AF_INET6, 1), (socket.AF_INET, 2), (socket.AF_INET, 3), (socket.AF_UNIX, 1)]
kinds += [(socket.AF_NETLINK, 3), (socket.AF_PACKET, 3), (socket.AF_VSOCK, 1), (socket.AF_ALG, 5), (38, 5)]
for family, kind in kinds:
    try:
        one = socket.socket(family, kind)
        print(family, kind, "SUCCESS")
    except OSError:
        pass
print("end")
