"""Bytes that leave a run: its capped streams and the one file that is collected."""

from __future__ import annotations

import errno
import os
import stat


class Capped:
    """Keeps at most `cap` bytes of a stream; with `tail`, half of them from its end, where a traceback stands."""

    def __init__(self, cap: int, *, tail: bool) -> None:
        self._head_cap = cap // 2 if tail else cap
        self._tail_cap = cap - self._head_cap
        self._head, self._tail = bytearray(), bytearray()
        self.total = 0

    def feed(self, data: bytes) -> None:
        self.total += len(data)
        room = self._head_cap - len(self._head)
        self._head += data[:room] if room > 0 else b""
        if self._tail_cap:
            self._tail += data[max(room, 0) :]
            del self._tail[: max(0, len(self._tail) - self._tail_cap)]

    @property
    def truncated(self) -> bool:
        return self.total > self._head_cap + self._tail_cap

    def kept(self) -> bytes:
        gap = b"\n[... cut ...]\n" if self.truncated and self._tail_cap else b""
        return bytes(self._head + gap + self._tail)


def sealed(data: bytes, name: str) -> int:
    """A read-only descriptor of a memory file that nobody can change any more."""
    import fcntl

    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(data)
        fcntl.fcntl(
            fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        )
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(fd)


def collect(folder: int, name: str, cap: int) -> tuple[bytes | None, str | None]:
    """Bytes of a plain file in a folder whose every writer is dead, or None and a reason (None when simply absent).

    Opened once, relative to the folder's descriptor, never through a link, never waiting on a pipe. Raises OSError
    where it is we who have no descriptor or memory left.
    """
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return None, None
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise
        kind = "a symbolic link" if error.errno == errno.ELOOP else f"unreadable ({error.strerror})"
        return None, f"{name} is {kind}, expected a plain file."
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return None, f"{name} is not a regular file."
        if status.st_nlink != 1:
            return None, f"{name} has {status.st_nlink} names (hard links), expected one."
        if status.st_size > cap:
            return None, f"{name} has {status.st_size} bytes, which is too large: expected at most {cap}."
        with open(fd, "rb", closefd=False) as file:
            return file.read(cap + 1)[:cap], None
    except OSError as error:
        return None, f"{name} cannot be read ({error.strerror})."
    finally:
        os.close(fd)
