# Attack: timers and queued signals until an error
# Verdicts: ok
# Machine: x86_64
# Prints: ^timers (1\d\d|2[0-5]\d)\nend$
# Cheap: yes
import ctypes
import signal

libc = ctypes.CDLL(None, use_errno=True)
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
number = ctypes.c_int()
count = 0
while count < 100_000 and libc.syscall(222, 0, 0, ctypes.byref(number)) == 0:
    count += 1
print("timers", count, flush=True)
signal.setitimer(signal.ITIMER_REAL, 1e-6, 1e-6)
for _ in range(5000):
    libc.syscall(129, ctypes.c_long(1), ctypes.c_long(40), ctypes.create_string_buffer(128))
print("end")
