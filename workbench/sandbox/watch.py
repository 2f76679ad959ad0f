"""One run, seen from outside: feed it, listen to it, measure it, stop it, take its file."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from workbench.sandbox import usage
from workbench.sandbox.records import Request
from workbench.sandbox.streams import Capped, collect, sealed
from workbench.sandbox.verdicts import NOT_SET_UP, Observed, Stop

TICK_S = 0.05
START_S = 30.0
"""A child that has not started its script by then is lost (by us)."""
KILL_S = 10.0
"""Longest that the processes of a run are waited for once they were killed."""
REST, LONGEST_REST_S = 5.0, 0.25
"""A look at a run that took CPU time is followed by this multiple of it without one, up to a bound: many processes and
files are many pages of /proc to read, on the thread that all runs share."""
MOST_FILES = 16384
"""Of a run without a file system of its own; where it has some, each of its folders takes half as many."""
SLACK_MB = 32
"""Pages of the preloaded interpreter that a run touches and so copies; not counted against its memory."""
PIPE_READS = 17
"""Reads that empty the largest pipe a process may make (1 MiB)."""
FLOOD = 64
"""stderr beyond this multiple of its cap ends the run like too much stdout."""


class Watch:
    """Supervises one child from the request to the death of all its processes. Lives in the executor's loop."""

    def __init__(self, run: socket.socket, request: Request, *, inherited: int, namespaces: bool) -> None:
        cap = request.limits.output_kb * 1024
        self._run, self._request, self._inherited, self._namespaces = run, request, inherited, namespaces
        self._loop = asyncio.get_running_loop()
        self._dead: asyncio.Future[None] = self._loop.create_future()
        self._init = self._folder = -1
        self._pipes: dict[int, Capped] = {}
        self._readers: set[int] = set()
        self._begun: float | None = None
        self._asked = time.monotonic()
        self._cpu0, self._resident0 = 0.0, 0
        self._next_look = 0.0
        self._work: str | None = None
        self._ledger: dict[tuple[int, int], int] = {}
        self._hung_up = False
        self._killed: float | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self.seen = Observed(Capped(cap, tail=False), Capped(cap, tail=True))

    async def observe(self, public: str | None, work: str | None) -> Observed:
        """Run to the end. `public`: the run's folder as the zygote names it; `work`: its folder without namespaces."""
        self._work = work
        try:
            self._ask(public, work)
            self._ticker = self._loop.call_later(TICK_S, self._tick)
            await asyncio.shield(self._dead)
        except asyncio.CancelledError:
            self._stop("cancelled")
            while not self._dead.done():  # `_insist` ends it at the latest
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.shield(self._dead)
            raise
        except OSError as error:
            self.seen.lost = f"The sandbox could not be reached: {error}."
        finally:
            if self._ticker is not None:
                self._ticker.cancel()
            self._settle()
        return self.seen

    def _ask(self, public: str | None, work: str | None) -> None:
        request = self._request
        limits = {name: getattr(request.limits, name) for name in request.limits.__slots__}
        message = {"limits": limits, "seed": request.seed, "public": public, "work": work}
        message["stdin"] = bool(request.stdin)
        message["files"] = {name: len(data) for name, data in request.files.items()}
        code = request.code if isinstance(request.code, bytes) else request.code.encode("utf-8", "surrogatepass")
        fds: list[int] = []
        try:
            fds.append(sealed(code, "script"))
            for stream in (self.seen.stdout, self.seen.stderr):
                read, write = os.pipe2(os.O_CLOEXEC)
                os.set_blocking(read, False)
                self._pipes[read] = stream
                fds.append(write)
            if request.stdin:
                fds.append(sealed(request.stdin, "stdin"))
            if request.files:  # one descriptor for all: those on their way count against the limit of open files
                fds.append(sealed(b"".join(request.files.values()), "files"))
            socket.send_fds(self._run, [json.dumps(message).encode()], fds)
        finally:
            for fd in fds:
                os.close(fd)
        self._listen(self._run.fileno(), self._hear)
        for fd in self._pipes:
            self._listen(fd, lambda fd=fd: self._read(fd))  # type: ignore[misc]

    def _listen(self, fd: int, callback: Callable[[], None]) -> None:
        self._loop.add_reader(fd, callback)
        self._readers.add(fd)

    def _deafen(self, fd: int) -> None:
        if fd in self._readers:
            self._readers.discard(fd)
            self._loop.remove_reader(fd)

    def _hear(self) -> None:
        """Take one message of the child; at the end of messages its death is near, or it never was."""
        try:
            data, fds, _, _ = socket.recv_fds(self._run, 1 << 16, 2, socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC)
        except (BlockingIOError, ConnectionResetError):
            return  # reset: it ended without reading all; what it said before is still to be read
        except OSError:
            data, fds = b"", []
        if not data:
            self._deafen(self._run.fileno())
            self._hung_up = True
            if self._init < 0:
                self._die()
            return
        self._note(json.loads(data), fds)

    def _note(self, message: dict[str, Any], fds: list[int]) -> None:
        match message["event"]:
            case "parked" | "furnished" if not fds:
                self.seen.lost = "No file descriptor was left to watch the run with: raise `ulimit -n`."
                self._kill()
            case "parked":
                self._init = fds[0]
                self._listen(self._init, self._die)
                if self.seen.stopped:
                    self._kill()
            case "furnished":
                self._folder = fds[0]
            case "started":
                self._begun = time.monotonic()
                self._cpu0, self._resident0 = message["cpu_s"], message["resident"]
            case "exit":
                self.seen.wall_s = time.monotonic() - (self._begun or time.monotonic())
                if self._begun is None and self.seen.stopped is None:
                    self.seen.lost = self.seen.lost or "The sandbox's process ended before the script began."
                elif self.seen.lost is None:
                    self.seen.status = message["status"]
                self._killed = self._killed or time.monotonic()  # the init ends now; `_insist` sees to it
                self.seen.cpu_s = max(self.seen.cpu_s, message["cpu_s"] - self._cpu0)
                self._raise_peak(message["peak"] - self._resident0)
            case "failed":
                self.seen.lost = f"{NOT_SET_UP}: {message['what'].strip().splitlines()[-1]}"

    def _read(self, fd: int) -> None:
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return
        stream = self._pipes[fd]
        stream.feed(data)
        if not data:
            self._deafen(fd)
        elif (
            stream is self.seen.stdout and stream.truncated
        ) or stream.total > FLOOD * self._request.limits.output_kb * 1024:
            self._stop("output")

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(TICK_S, self._tick)
        now = time.monotonic()
        if self._killed is not None:
            self._insist(now - self._killed)
        elif self._begun is None:
            if now - self._asked > START_S:
                self.seen.lost = f"The sandbox did not start the script within {START_S:g} s."
                self._kill()
        else:
            if now >= self._next_look:
                spent = time.thread_time()
                self._look()
                self._next_look = time.monotonic() + min(REST * (time.thread_time() - spent), LONGEST_REST_S)
            if self.seen.stopped is None and now - self._begun > self._request.limits.wall_s:
                self._stop("wall")

    def _look(self) -> None:
        try:
            self._measure()
        except OSError:
            pass  # no descriptor left to read /proc with: the wall limit still holds
        except Exception as error:  # a fault of ours: no run goes on unwatched
            self.seen.lost = f"The sandbox could not look at the run: {error}."
            self._kill()

    def _measure(self) -> None:
        limits, root = self._request.limits, usage.pid_of(self._init)
        if root <= 0:
            return
        pids = usage.tree(root)
        self.seen.cpu_s = max(self.seen.cpu_s, usage.cpu_seconds(root, pids, self._ledger) - self._cpu0)
        if self.seen.cpu_s > limits.cpu_s:
            self._stop("cpu")
        memory = usage.memory_bytes(pids[1:], self._inherited, 0.5 * limits.memory_mb * 2**20)
        memory += usage.socket_bytes(pids[1:], (limits.memory_mb + SLACK_MB) * 2**20 - memory)
        self._raise_peak(memory)
        if memory > (limits.memory_mb + SLACK_MB) * 2**20:
            self._stop("memory")
        # No file system of their own bounds its two folders.
        if self._work is not None and usage.disk_bytes(self._work, MOST_FILES) > 2 * limits.files_mb * 2**20:
            self._stop("disk")

    def _raise_peak(self, count: float) -> None:
        self.seen.peak_mb = max(self.seen.peak_mb, count / 2**20)

    def _stop(self, why: Stop) -> None:
        if self.seen.stopped is None and self.seen.status is None:
            self.seen.stopped = why
            self.seen.wall_s = time.monotonic() - (self._begun or time.monotonic())
            self._kill()

    def _kill(self) -> None:
        """Kill the init, and with it its whole pid namespace; without one, or a hold on it, hang up: it ends itself."""
        self._killed = self._killed or time.monotonic()
        with contextlib.suppress(OSError):  # it has ended; else `_insist` tries again
            if self._namespaces and self._init >= 0:
                signal.pidfd_send_signal(self._init, signal.SIGKILL)
            elif not self._hung_up:
                self._run.shutdown(socket.SHUT_WR)

    def _insist(self, waited: float) -> None:
        """The kill did not end it: without a pid namespace its init may have been stopped or killed by the run."""
        if waited > KILL_S:
            if self.seen.status is None:
                self.seen.lost = f"The sandbox could not be stopped within {KILL_S:g} s."
            self._die()
        elif waited > 1 and self._init >= 0:
            with contextlib.suppress(OSError):  # no descriptor left to look with
                for pid in usage.tree(usage.pid_of(self._init))[::-1]:
                    _end(pid)

    def _die(self) -> None:
        if self._init >= 0:
            self._deafen(self._init)
        if not self._dead.done():
            self._dead.set_result(None)

    def _settle(self) -> None:
        """All processes are dead: read what they left in the pipes and the folder, close everything."""
        try:
            self._read_the_rest()
        finally:
            for fd in list(self._readers):
                self._deafen(fd)
            for fd in (*self._pipes, self._init, self._folder):
                if fd >= 0:
                    os.close(fd)
            self._run.close()

    def _read_the_rest(self) -> None:
        while not self._hung_up and _readable(self._run.fileno()):
            self._hear()
        if self.seen.status is None and self.seen.stopped is None and self.seen.lost is None:
            if self._namespaces or self._begun is None:
                self.seen.lost = "The sandbox ended without a report."
            else:  # without a pid namespace a script may end its init; the zygote ends the script
                self.seen.stopped, self.seen.wall_s = "unwatched", time.monotonic() - self._begun
        for fd in self._pipes:
            for _ in range(PIPE_READS):  # somebody who is not watched may go on writing
                if fd in self._readers and _readable(fd):
                    self._read(fd)
        name, wanted = self._request.collect, self._request.collect_bytes
        unwatched = self.seen.stopped == "unwatched"  # it may still write
        if name is not None and self._folder >= 0 and self.seen.lost is None and not unwatched:
            most = int(self._request.limits.files_mb * 2**20)
            try:
                self.seen.submission, self.seen.reason = collect(self._folder, name, min(most, wanted or most))
            except OSError as error:
                self.seen.lost = f"The sandbox could not read {name}: {error.strerror}."


def _end(pid: int) -> None:
    if pid > 0:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _readable(fd: int) -> bool:
    """Whether reading would not wait. Not by `select`, which takes no descriptor above 1023."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))
