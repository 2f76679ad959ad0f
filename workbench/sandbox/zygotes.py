"""The executor's handle on one zygote: a process with the libraries imported that clones a child per run."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from workbench.sandbox import mounts, outer, usage
from workbench.sandbox.outer import Means
from workbench.types import WorkbenchError

BOOT_S = 60.0


class NotStarted(WorkbenchError):
    """A zygote did not come up."""

    def __init__(self, what: str) -> None:
        self.what = what.rstrip(".")
        super().__init__(
            f"The sandbox's own process (the zygote, from which every script is started) could not start, so no script "
            f"can run: {self.what}; run `workbench doctor`, which tries the sandbox anew and says what is missing."
        )


class Zygote:
    """Started with `boot`; lives until `kill`. All methods are called in the executor's loop, but for
    the `kill` of one that is retired."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        control: socket.socket,
        log: int,
        public: Mapping[Path, str],
        means: Means,
    ) -> None:
        self._process, self._control, self._log = process, control, log
        self._namespaces = means.outer != "none"
        self._parked: deque[socket.socket] = deque()
        self._pidfd = -1
        self.public = dict(public)
        """Folder outside → its name inside."""
        self.inherited = 0
        """Private bytes that every child starts with."""
        self.boot_s = 0.0
        self.runs = self.active = 0
        self.retired = False

    @classmethod
    async def boot(
        cls,
        means: Means,
        flavour: str,
        public: Mapping[Path, str],
        hidden: tuple[Path, ...],
        seccomp: bytes,
        *,
        within_s: float = BOOT_S,
    ) -> Zygote:
        """Start one and wait until it is warm. Raises `NotStarted` when it does not come up."""
        view = mounts.view(outer.public_plan(public), hidden)
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            log = os.memfd_create("zygote", os.MFD_CLOEXEC)
        except OSError as error:
            raise NotStarted(str(error)) from None
        started = time.monotonic()
        # From the executor's own thread: bubblewrap dies with the *thread* that started it, and this one stays.
        try:
            process = subprocess.Popen(
                outer.command(means, view, theirs.fileno()),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=outer.environment(view),
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            os.close(log)
            raise NotStarted(str(error)) from None
        finally:
            theirs.close()
        zygote = cls(process, ours, log, public, means)
        try:
            ours.send(json.dumps(outer.configuration(means, view, flavour, seccomp)).encode())
            await asyncio.wait_for(zygote._await_ready(), within_s)
        except (OSError, TimeoutError, ValueError) as error:
            tail = zygote._last_words()
            zygote.kill()
            raise NotStarted(tail or str(error) or f"it was not ready within {within_s:g} s") from None
        except BaseException:
            zygote.kill()
            raise
        zygote.boot_s = time.monotonic() - started
        return zygote

    async def _await_ready(self) -> None:
        loop = asyncio.get_running_loop()
        readable = loop.create_future()

        def wake() -> None:
            if not readable.done():
                readable.set_result(None)

        loop.add_reader(self._control.fileno(), wake)
        try:
            await readable
        finally:
            loop.remove_reader(self._control.fileno())
        message, fds, _, _ = socket.recv_fds(self._control, 1 << 16, 1)
        if not fds:
            raise ValueError("no file descriptor was left, raise `ulimit -n`" if message else "it ended")
        self._pidfd = fds[0]
        os.set_inheritable(self._pidfd, False)
        self.inherited = usage.anonymous_bytes(self.pid)[0]

    @property
    def pid(self) -> int:
        return usage.pid_of(self._pidfd)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None and self._pidfd >= 0 and not _ended(self._pidfd)

    def resident(self) -> int:
        """Private bytes now."""
        return usage.anonymous_bytes(self.pid)[0]

    def park(self, count: int) -> None:
        """Have `count` children cloned and waiting, so that the clone is not on a run's path."""
        while len(self._parked) < count and not self.retired:
            self._parked.append(self._spawn())

    def child(self) -> socket.socket:
        """The socket of a child of one's own; it takes one request."""
        return self._parked.popleft() if self._parked else self._spawn()

    def _spawn(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            socket.send_fds(self._control, [b"spawn"], [theirs.fileno()], socket.MSG_DONTWAIT)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return ours

    def reap(self) -> None:
        """Nudge it to collect ended children now."""
        with contextlib.suppress(OSError):
            self._control.send(b"reap", socket.MSG_DONTWAIT)

    def kill(self) -> None:
        """End it and all its runs. Idempotent."""
        self.retired = True
        if self._log < 0:
            return
        for run in self._parked:
            run.close()
        self._parked.clear()
        if self._pidfd >= 0:
            if not self._namespaces:  # no namespace dies with it: it must end what is below it
                with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                    self._control.shutdown(socket.SHUT_RDWR)
                    self._process.wait(2)
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        self._control.close()
        for fd in (self._pidfd, self._log):
            if fd >= 0:
                os.close(fd)
        self._pidfd = self._log = -1

    def _last_words(self) -> str:
        size = os.fstat(self._log).st_size
        text = os.pread(self._log, 2000, max(0, size - 2000)).decode("utf-8", "replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1] if lines else ""


def _ended(pidfd: int) -> bool:
    """Whether the process has ended, be it collected by its parent or not."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))
