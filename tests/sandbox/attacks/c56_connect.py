# Attack: connects to ports of the machine, to the network and asks for names
# Verdicts: ok
# Prints: ^end$
# Cheap: yes
import json
import socket
import sys

facts = json.load(sys.stdin)
for address in (("127.0.0.1", facts["port"]), ("127.0.0.1", 8888), ("169.254.169.254", 80), ("1.1.1.1", 53), ("::1", facts["port"])):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        try:
            with socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, kind) as one:
                one.settimeout(0.5)
                one.connect(address)
                one.send(b"attack")
                print(address, "SUCCESS")
        except OSError:
            pass
try:
    print("SUCCESS", socket.getaddrinfo("example.com", 80))
except OSError:
    pass
print("end")
