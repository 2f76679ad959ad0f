"""A short attack on its own sandbox. Run inside by `isolation.probe()`: prints the names of what it could do.

Gets JSON on stdin: `secret` and `folder` (a file to read, a folder to write in, both open to everybody outside), `port`
(a listener on loopback), `pid` (the supervisor), `home` (paths in the user's home), `processes` (the limit).
Standard library only.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

facts: dict[str, Any] = {}
libc = ctypes.CDLL(None, use_errno=True)


def read_secret() -> bool:
    return bool(open(facts["secret"]).read())


def read_home() -> bool:
    return any(_succeeds(lambda path=path: _opens(path)) for path in facts["home"])  # type: ignore[misc]


def write_folder() -> bool:
    return bool(open(facts["folder"] + "/written", "w").write("x"))


def write_library() -> bool:
    return bool(open(os.path.dirname(os.__file__) + "/workbench_canary", "w").write("x"))


def connect() -> bool:
    return socket.create_connection(("127.0.0.1", facts["port"]), timeout=0.2) is not None


def send_datagram() -> bool:
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", facts["port"])) > 0


def signal_supervisor() -> bool:
    os.kill(facts["pid"], 0)
    return True


def read_supervisor() -> bool:
    return bool(open(f"/proc/{facts['pid']}/cmdline").read())


def read_parent_memory() -> bool:
    return bool(open(f"/proc/{os.getppid()}/environ").read())


def trace_parent() -> bool:
    return libc.ptrace(16, os.getppid(), 0, 0) == 0  # PTRACE_ATTACH


def new_namespace() -> bool:
    return libc.unshare(0x1000_0000) == 0  # CLONE_NEWUSER


def hidden_memory() -> bool:
    return os.memfd_create("x") >= 0


def raise_limit() -> bool:
    resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return True


def inherited_descriptor() -> bool:
    return any(_open(fd) for fd in range(3, 256))


def many_processes() -> bool:
    """Beyond the limit of processes by far; all of them end at once."""
    started = 0
    try:
        for _ in range(2 * facts["processes"]):
            if os.fork() == 0:
                time.sleep(30)
            started += 1
    except OSError:
        return False
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.kill(0, signal.SIGTERM)
    return started > 0


def _opens(path: str) -> bool:
    os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    return True


def _open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _succeeds(attack: Callable[[], bool]) -> bool:
    try:
        return attack()
    except (OSError, ValueError):
        return False


ATTACKS = (
    read_secret, read_home, write_folder, write_library, connect, send_datagram, signal_supervisor, read_supervisor,
    read_parent_memory, trace_parent, new_namespace, hidden_memory, raise_limit, inherited_descriptor, many_processes,
)  # fmt: skip

if __name__ == "__main__":
    facts.update(json.load(sys.stdin))
    print(json.dumps([attack.__name__ for attack in ATTACKS if _succeeds(attack)]))
