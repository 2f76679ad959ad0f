# Attack: a 32-bit system call by machine code
# Verdicts: runtime_error
# Machine: x86_64
# Signal: 31
# Cheap: yes
import ctypes
import mmap

code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")  # mov eax, 20; int 0x80; ret
address = ctypes.addressof(ctypes.c_char.from_buffer(code))
print("SUCCESS", ctypes.CFUNCTYPE(ctypes.c_int)(address)(), flush=True)
