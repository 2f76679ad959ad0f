"""The processes below this one: waited for, found, ended. Runs inside the sandbox: standard library only."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from collections.abc import Collection


def childless(*, wait: bool = False) -> bool:
    """Reap what has ended (`wait`: wait for all); whether nothing is left below us."""
    try:
        while os.waitpid(-1, 0 if wait else os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False


def children() -> set[int]:
    found = set[int]()
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # that thread has ended; its children are another's now
            found.update(map(int, slurp(f"/proc/self/task/{task}/children").split()))
    return found


def wakes() -> tuple[int, int]:
    """A pipe that is readable after the end of a child: so an end and a message can be waited for together."""
    read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return read, write


def sleeps(pipe: tuple[int, int]) -> None:
    """Undo `wakes` in the program, which has children of its own."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    for fd in pipe:
        os.close(fd)


def wait_for(pid: int, run: socket.socket, pipe: tuple[int, int]) -> tuple[int, int]:
    """Reap everything until `pid` ends: its wait status and its peak resident bytes.

    Ends it when the executor hangs up: to stop the run where it cannot kill us with all that is ours, or by its death.
    """
    poll = select.poll()
    poll.register(run, select.POLLRDHUP)
    poll.register(pipe[0], select.POLLIN)
    while True:
        events = dict(poll.poll())
        if run.fileno() in events:
            poll.unregister(run)
            os.kill(pid, signal.SIGKILL)
        if pipe[0] in events:
            os.read(pipe[0], 1 << 12)
        with contextlib.suppress(ChildProcessError):
            while (found := os.wait4(-1, os.WNOHANG))[0]:
                if found[0] == pid:
                    return found[1], found[2].ru_maxrss * 1024


def kill_descendants(spared: Collection[int] = ()) -> bool:
    """SIGKILL all below this process, but for the `spared` children and those below them; whether there were any.

    Orphans come to us, so none can hide above. One that forks and ends, again and again, is gone before a look at all
    processes is done: so afterwards our own children, which it is among, are looked at and killed at once, many times.
    """
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                parents[int(name)] = int(slurp(f"/proc/{name}/stat").rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
    family = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in family} - family - set(spared):
        family |= more
    for pid in family - {os.getpid()}:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    childless()
    for _ in range(200):
        if not (left := children() - set(spared)):
            break
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        childless()
    return len(family) > 1


def slurp(path: str) -> str:
    with open(path, errors="replace") as file:
        return file.read()
