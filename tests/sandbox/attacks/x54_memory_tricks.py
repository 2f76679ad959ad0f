# Attack: grows a map, gives it back and takes it again, locks it, asks for huge pages
# Verdicts: memory_limit
# Reason: ^(Refused more than|Stopped above) 256 MB of memory
# Limits: cpu_s=5 wall_s=8
import mmap

held = []
while True:
    one = mmap.mmap(-1, 2**20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for advice in (mmap.MADV_HUGEPAGE, mmap.MADV_DONTFORK, mmap.MADV_DONTDUMP, mmap.MADV_MERGEABLE):
        try:
            one.madvise(advice)
        except OSError:
            pass
    one.resize(4 * 2**20)
    for start in range(0, 4 * 2**20, 4096):
        one[start] = 1
    one.madvise(mmap.MADV_FREE) if len(held) % 2 else None
    for start in range(0, 4 * 2**20, 4096):
        one[start] = 1
    held.append(one)
