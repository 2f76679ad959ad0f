# Attack: writes without waiting to its output, from many descriptors, made as small as can be
# Verdicts: output_limit
# Prints: \Ax+
# Cheap: yes
import fcntl
import os

fcntl.fcntl(1, 1031, 4096)  # F_SETPIPE_SZ
os.set_blocking(1, False)
copies = [os.dup(1) for _ in range(50)]
for number in range(10**6):
    try:
        os.write(copies[number % 50], b"x" * 4096)
    except BlockingIOError:
        pass
