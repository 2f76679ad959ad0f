# Attack: a robust list that goes round for ever and ends nowhere, which the kernel follows when its process ends
# Verdicts: ok
# Machine: x86_64
# Prints: \Aset 0\nfollowed True\n\Z
# Within: 2
# Cheap: yes
import ctypes
import mmap
import os

libc = ctypes.CDLL(None, use_errno=True)
room = mmap.mmap(-1, 4096)  # shared: the parent sees what the kernel left in it
head = ctypes.addressof(ctypes.c_char.from_buffer(room))
entry, lock, nowhere = head + 64, 8, 0xDEAD0000
for place, value in ((0, entry), (8, lock), (16, nowhere), (64, entry)):  # the entry's next one is itself
    room[place : place + 8] = value.to_bytes(8, "little")
if os.fork() == 0:
    room[64 + lock : 68 + lock] = os.getpid().to_bytes(4, "little")
    os.write(1, b"set %d\n" % libc.syscall(273, ctypes.c_long(head), ctypes.c_long(24)))
    os._exit(0)
os.wait()
print("followed", room[64 + lock + 3] & 0x40 != 0)  # FUTEX_OWNER_DIED
