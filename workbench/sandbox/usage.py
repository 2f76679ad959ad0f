"""CPU and memory of a run, read from outside in /proc: what the run says of itself is not believed."""

from __future__ import annotations

import contextlib
import errno
import functools
import math
import os
from io import TextIOWrapper

_TICK = os.sysconf("SC_CLK_TCK")


def _open(path: str) -> TextIOWrapper:
    """A file of /proc, in which a process's name may be any bytes: it is the script that chooses them, and the kernel
    escapes no carriage return."""
    return open(path, errors="replace", newline="\n")


def pid_of(pidfd: int) -> int:
    """The pid, as seen from here, behind a pidfd; -1 when it has ended."""
    with open(f"/proc/self/fdinfo/{pidfd}") as file:
        return next((int(line.split()[1]) for line in file if line.startswith("Pid:")), -1)


def tree(root: int) -> list[int]:
    """`root` and all its descendants. In a pid namespace nothing can leave the tree of its init."""
    found, queue = [], [root]
    while queue:
        pid = queue.pop()
        found.append(pid)
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children") as file:
                    queue += map(int, file.read().split())
        except OSError:
            continue  # it ended while we looked
    return found


def cpu_seconds(root: int, pids: list[int], ledger: dict[tuple[int, int], int]) -> float:
    """CPU of the processes below `root`, ended ones included, without that of `root` itself.

    Parents take over the time of children they wait for; a parent that ignores SIGCHLD does not. So `ledger` keeps the
    most seen of each process's own time, by pid and start time, between calls; what such a child uses after the last
    look at it is not seen.
    """
    ticks = 0
    for pid in pids:
        try:
            with _open(f"/proc/{pid}/stat") as file:
                words = [int(word) for word in file.read().rpartition(")")[2].split()[11:20]]
        except (OSError, ValueError):
            continue
        own, waited_for = sum(words[:2]), sum(words[2:4])
        ticks += waited_for
        if pid != root:
            ticks += own
            ledger[pid, words[8]] = max(own, ledger.get((pid, words[8]), 0))
    return max(ticks, sum(ledger.values())) / _TICK


def anonymous_bytes(pid: int) -> tuple[int, int]:
    """Private and shared memory of a process as its page tables count it; pages inherited by fork count too."""
    values = {"RssAnon:": 0, "RssShmem:": 0}
    try:
        with _open(f"/proc/{pid}/status") as file:
            for line in file:
                name, _, rest = line.partition("\t")
                if name in values:
                    values[name] = int(rest.split()[0]) * 1024
    except OSError:
        pass
    return values["RssAnon:"], values["RssShmem:"]


def memory_bytes(pids: list[int], inherited: int, worry: float) -> float:
    """Memory the processes take beyond the `inherited` bytes they were forked with.

    A cheap estimate is enough for one process below `worry`; above, or with several, which may share pages, the exact
    sum, which costs milliseconds.
    """
    estimate = 0.0
    for pid in pids:
        private, shared = anonymous_bytes(pid)
        estimate += max(0, private - inherited) + shared
    if estimate < worry and len(pids) <= 1:
        return estimate
    exact = [_exact(pid) for pid in pids]
    if None in exact:
        return estimate
    private, shares, others = (sum(values) for values in zip(*filter(None, exact), strict=True)) if exact else (0, 0, 0)
    # What a parent filled before it forked is private to none of them; shares of it are counted, less the inherited.
    return float(max(private, shares - inherited) + others)


def socket_bytes(pids: list[int], worry: float) -> int:
    """The most that the sockets of these processes may hold in the kernel, where no count of a process's pages sees it.

    A socket holds what it sent and nobody has read, up to its send buffer. One that several processes share counts
    once; of a process that does not show its descriptors, each that it has room for counts. 0 where it is below `worry`
    even if every open file were a socket of its own: to look at each takes milliseconds.
    """
    hidden, names = 0, list[str]()
    for pid in pids:
        try:
            names += [f"/proc/{pid}/fd/{fd}" for fd in os.listdir(f"/proc/{pid}/fd")]
        except PermissionError:
            hidden += _room(pid)
        except OSError:
            continue  # it ended
    if (len(names) + hidden) * _send_buffer() < worry:
        return 0
    sockets = set[str]()
    for name in names:
        with contextlib.suppress(OSError):  # it was closed
            target = os.readlink(name)
            if target.startswith("socket:"):
                sockets.add(target)
    return (len(sockets) + hidden) * _send_buffer()


def _room(pid: int) -> int:
    """Descriptors for which a process has room in its table."""
    try:
        with _open(f"/proc/{pid}/status") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("FDSize:")), 0)
    except OSError:
        return 0


@functools.cache
def _send_buffer() -> int:
    try:
        with open("/proc/sys/net/core/wmem_default") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 212_992


def disk_bytes(folder: str, most_files: int) -> float:
    """What the files below `folder` take on the disk; infinite beyond `most_files`, or where a path is too long.

    A file that is open but has no name any more is not seen.
    """
    total, seen, folders = 0, 0, [folder]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    seen += 1
                    if seen > most_files:
                        return math.inf
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return math.inf  # else it was removed meanwhile
    return total


def _exact(pid: int) -> tuple[int, int, int] | None:
    """Bytes of private pages, of shares of anonymous ones, of shares of shared and swapped ones; None: hidden."""
    values = {"Private_Dirty:": 0, "Pss_Anon:": 0, "Pss_Shmem:": 0, "SwapPss:": 0}
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            for line in file:
                name, _, rest = line.partition(" ")
                if name in values:
                    values[name] = int(rest.split()[0]) * 1024
    except PermissionError:
        return None
    except OSError:
        return 0, 0, 0
    return values["Private_Dirty:"], values["Pss_Anon:"], values["Pss_Shmem:"] + values["SwapPss:"]
