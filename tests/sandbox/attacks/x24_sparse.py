# Attack: files of 1 TB with nothing in them
# Verdicts: ok
# Prints: \A(refused\n){3}\Z
# Cheap: yes
import os

fd = os.open("sparse", os.O_RDWR | os.O_CREAT)
for action in (lambda: os.ftruncate(fd, 2**40), lambda: os.pwrite(fd, b"x", 2**40), lambda: os.posix_fallocate(fd, 0, 2**40)):
    try:
        action()
        print("SUCCESS")
    except OSError:
        print("refused")
