# Attack: a robust list that points at itself and at nothing
# Verdicts: ok runtime_error
# Machine: x86_64
# Cheap: yes
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
room = ctypes.create_string_buffer(24)
here = ctypes.addressof(room)
ctypes.memmove(room, here.to_bytes(8, "little") + (8).to_bytes(8, "little") + (0xDEAD0000).to_bytes(8, "little"), 24)
print(libc.syscall(273, ctypes.c_long(here), ctypes.c_long(24)))
