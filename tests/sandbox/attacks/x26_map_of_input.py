# Attack: maps the input to write through the map
# Verdicts: ok
# Prints: \A(refused\n){3}\Z
# Cheap: yes
import mmap
import os

fd = os.open("./input/train.csv", os.O_RDONLY)
for action in (
    lambda: mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE),
    lambda: os.open("./input/train.csv", os.O_RDWR),
    lambda: os.open("./input", os.O_RDWR | os.O_TMPFILE),
):
    try:
        action()
        print("SUCCESS")
    except OSError:
        print("refused")
private = mmap.mmap(fd, 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
private[:4] = b"mine"
