# Attack: reads every readable byte of its own memory and prints words of others found there
# Verdicts: ok
# Machine: x86_64
# Prints: \Abegun False False\nread enough True\n\Z
import ctypes
import os
import re

print("begun", os.path.exists("/proc/self/maps"), os.path.exists("/proc/self/mem"), flush=True)
word = re.compile(rb"nobody-may-[r]ead|private/[a]nswers")
libc = ctypes.CDLL(None, use_errno=True)
read, write = os.pipe()
os.set_blocking(write, False)
libc.write.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
start = id(object()) & ~0xFFF
pages = 0
for page in range(start - 64 * 2**20, start + 64 * 2**20, 4096):
    if libc.write(write, page, 4096) == 4096:  # an address that is not mapped is an error, not a fault
        pages += 1
        for found in word.finditer(data := os.read(read, 4096)):
            print("SUCCESS", data[max(0, found.start() - 40) : found.end() + 40])
print("read enough", pages > 200)
