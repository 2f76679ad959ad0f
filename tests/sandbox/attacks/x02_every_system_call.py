# Attack: every number of a system call, with arguments that mean nothing: none gets through but those that scripts need
# Verdicts: ok
# Machine: x86_64
# Prints: \Abeyond the needed \[\]\nenough True\n\Z
# Cheap: yes
import ctypes
import errno
import mmap
import os

NEEDED = """
0-28 32-40 44-45 47-48 51-53 55-63 72-100 102 104 107-112 115 118 120-121 124-125 127-133 137-138 140-141 143 145-150
157-158 160 186-187 191-196 200-204 213 217-219 221-226 228-235 239 247 257-271 273-277 280-287 289-293 295-297 299 302 309
315-316 318 322 324 326-328 332 334 424 434 436-437 439 441 449
"""
WAITING = "0 3 7 15 23 34 35 37 38 56-58 60 61 128 130 202 219 230-232 270 271 281 436"  # or ending, or multiplying
UNFILTERED = "335 336"  # the kernel asks no filter about its own probes, and ends whoever calls them without one
COUNT = 600


def numbers(text):
    ends = [word.split("-") for word in text.split()]
    return {number for one in ends for number in range(int(one[0]), int(one[-1]) + 1)}


def passes(number, argument):
    answer = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(argument)] * 6)
    return answer >= 0 or ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS)


libc = ctypes.CDLL(None, use_errno=True)
answers = mmap.mmap(-1, COUNT)  # by number, shared: 1 it got through, 2 it ended the process
left = sorted(set(range(COUNT)) - numbers(WAITING) - numbers(UNFILTERED))
while left:
    if os.fork() == 0:
        for number in left:
            answers[number] = 2
            answers[number] = passes(number, -1) | passes(number, 0)
        os._exit(0)
    os.wait()
    left = [number for number in left if number > answers.find(b"\2", left[0]) >= 0]
through = {number for number in range(COUNT) if answers[number]}
print("beyond the needed", sorted(through - numbers(NEEDED)))
print("enough", len(through) > 120)
