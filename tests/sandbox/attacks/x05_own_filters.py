# Attack: filters of its own that lie, notify and answer for others; more layers than there may be
# Verdicts: runtime_error
# Machine: x86_64
# Limits: cpu_s=1 wall_s=4
# Signal: 11
# Prints: \Anotify refused\nlayers \d+\n\Z
import ctypes
import os
import struct

libc = ctypes.CDLL(None, use_errno=True)
print("notify", "SUCCESS" if libc.syscall(317, 1, 8, 0) >= 0 else "refused", flush=True)
for layer in range(100_000):
    code = ctypes.create_string_buffer(struct.pack("<HBBI", 6, 0, 0, 0x7FFF0000) * 2000, 16000)
    head = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", 2000, ctypes.addressof(code)), 16)
    if libc.prctl(22, ctypes.c_ulong(2), ctypes.c_ulong(ctypes.addressof(head)), 0, 0) != 0:
        print("layers", layer, flush=True)
        break
lie = ctypes.create_string_buffer(struct.pack("<HBBI", 6, 0, 0, 0x00050000), 8)
head = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", 1, ctypes.addressof(lie)), 16)
libc.prctl(22, ctypes.c_ulong(2), ctypes.c_ulong(ctypes.addressof(head)), 0, 0)
os.write(1, b"answered by the lie")
os._exit(0)
