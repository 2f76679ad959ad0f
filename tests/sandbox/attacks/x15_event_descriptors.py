# Attack: event, signal and timer descriptors, each watched by nested polls
# Verdicts: ok
# Prints: ^stopped at 25\d$
# Cheap: yes
import ctypes
import os
import select

libc = ctypes.CDLL(None, use_errno=True)
made = []
try:
    outer = select.epoll()
    while True:
        inner = select.epoll()
        one = [os.eventfd(2**31), libc.timerfd_create(1, 0), os.pipe()[0]][len(made) % 3]
        if one < 0:
            raise OSError("timers")
        made += [inner, one]
        inner.register(one)
        try:
            outer.register(inner)
            inner.register(outer)
        except OSError as error:
            if error.errno == 24:
                raise
except OSError:
    print("stopped at", max(int(one if isinstance(one, int) else one.fileno()) for one in made) - 1 or len(made))
