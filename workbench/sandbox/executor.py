"""The executor: runs scripts that nobody has read, many at once, each shut in by the kernel.

One `Executor` keeps a *zygote* per flavour, a process in an outer sandbox that has the libraries imported. Per run the
zygote clones one child into namespaces of its own; the child locks itself in and becomes the script. This side stays
outside: it hands over the request, measures, caps, kills and collects the one file, after every process is dead.

What is covered, at level B (see `isolation.py` for the levels; C and D lack some, and say which):

- files: a run sees the interpreter, a fixed set of libraries, its own ./input (read-only) and its own empty folders in
  memory. No home, no /etc/passwd, no repository, no answers, no other run's folder, no data set bundled with a library;
- network: there is none, not even loopback; sockets are refused;
- processes: it sees, signals and traces only its own. All of them die together, daemons too, before anything is read;
- rights: no capabilities, no new namespaces, no set-user-id, an allow-list of system calls, Landlock on top;
- amounts: CPU, wall time, memory (summed over processes), processes and threads, open files, file sizes, disk, output;
- secrets: the environment is a fixed short list; no descriptor but 0, 1 and 2; nothing of another run in memory;
- the grader: only bytes leave. A link, pipe, device or hard link in place of the file is not followed but reported;
- the trainer's end: everything of a run dies with the process that started the executor, even by SIGKILL.

What is not:

- a bug in the kernel. Where that matters, run the workbench in a virtual machine;
- timing and cache channels between runs on one machine;
- exact memory limits over several processes: the sum is polled every 50 ms, a short overshoot is possible;
- all CPU of children whose parent ignores SIGCHLD: what they use after the last look, each 50 ms; wall time bounds it;
- at level D below Landlock 6, other processes of the same user: a script can signal them, the trainer too, though not
  its own init and zygote;
- randomness that a script takes from the operating system; `random` and `numpy.random` are seeded per run;
- a script that finds the zygote's frames with `sys._getframe`: it can, there is nothing in them.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import logging
import threading
import weakref
from collections.abc import Coroutine, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from workbench.sandbox import isolation, workfolder
from workbench.sandbox.isolation import Isolation
from workbench.sandbox.records import Flavour, Limits, Request, Result
from workbench.sandbox.streams import Capped
from workbench.sandbox.verdicts import Observed, judge
from workbench.sandbox.watch import Watch
from workbench.sandbox.zygotes import Zygote
from workbench.types import WorkbenchError

__all__ = ["Executor", "Limits", "Request", "Result"]

log = logging.getLogger(__name__)

RECYCLE_RUNS = 2000
"""Runs after which a zygote is replaced."""
RECYCLE_GROWTH = 1.5
"""Growth of its private memory after which a zygote is replaced."""
PARKED = 2
"""Most children kept cloned in advance, per zygote."""


class Executor:
    """Runs `Request`s, `workers` at once, on a thread of its own.

    data_roots: folders below which every `Request.public_dir` lies. workers: runs at once. min_level: weakest isolation
    accepted. unsafe: accept level E, where model code runs with your rights. flavours: zygotes to keep ready.
    queue: requests waiting or running before `submit` blocks. without: means not to use although they are there
    (bubblewrap, namespaces, landlock, seccomp), to see what a weaker machine would do.
    """

    def __init__(
        self,
        data_roots: Sequence[Path] = (),
        workers: int = 2,
        min_level: str = "D",
        unsafe: bool = False,
        flavours: Sequence[Flavour] = ("full",),
        *,
        queue: int = 1024,
        without: Sequence[str] = (),
    ) -> None:
        if workers < 1 or queue < 1:
            raise WorkbenchError(f"workers={workers}, queue={queue} is not accepted: both must be at least 1.")
        self._roots = tuple(Path(root).resolve() for root in data_roots)
        self._workers, self._min_level, self._unsafe = workers, min_level, unsafe
        self._flavours, self._without = tuple(flavours), tuple(without)
        self._places = threading.BoundedSemaphore(queue)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._isolation: Isolation | None = None
        self._zygotes: dict[str, Zygote] = {}
        self._retiring: set[Zygote] = set()
        self._booting: dict[str, asyncio.Task[Zygote]] = {}
        self._public: dict[Path, str] = {}
        self._seccomp = b""
        self._closed = False

    # Life

    def start(self) -> Self:
        """Find the isolation level, start the thread and the zygotes, wait until they are warm. Idempotent.

        Raises `WorkbenchError` below `min_level` and when a zygote does not come up; where one does not come up again
        later, runs are `infrastructure` with the same sentence as reason, and calling `start` again raises it.
        """
        with self._lock:
            if self._closed:
                raise WorkbenchError("This executor is closed: make a new one.")
            if self._thread is None:
                self._isolation = isolation.require(self._min_level, unsafe=self._unsafe, without=self._without)
                self._seccomp = isolation.filter_for(self._isolation)
                workfolder.sweep()
                for root in self._roots:
                    for folder in workfolder.public_folders(root):
                        self._publish(folder)
                self._open_thread()
        for flavour in self._flavours:
            self._call(self._zygote(flavour)).result()
        return self

    def _open_thread(self) -> None:
        loop = asyncio.new_event_loop()
        self._loop = loop
        self._slots = asyncio.Semaphore(self._workers)
        self._thread = threading.Thread(target=loop.run_forever, name="sandbox", daemon=True)
        self._thread.start()
        atexit.register(_close, weakref.ref(self))

    def close(self) -> None:
        """Kill what runs, end the zygotes and the thread. Idempotent; waiting requests are cancelled."""
        with self._lock:
            self._closed = True
            thread, loop, self._thread = self._thread, self._loop, None
        if thread is None or loop is None:
            return
        asyncio.run_coroutine_threadsafe(self._shut(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    async def _shut(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for zygote in (*self._zygotes.values(), *self._retiring):
            zygote.kill()
        self._zygotes.clear()
        self._retiring.clear()
        await asyncio.get_running_loop().shutdown_default_executor()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Use

    @property
    def level(self) -> str:
        """Isolation level in use, A-E; found by `start`."""
        if self._isolation is None:
            self.start()
        assert self._isolation is not None
        return self._isolation.level

    def describe(self) -> dict[str, Any]:
        """level, missing, hints, tried (as `workbench doctor` tells); once started, seconds each zygote took."""
        found = self._isolation or isolation.probe(self._without)
        boots = {flavour: round(zygote.boot_s, 2) for flavour, zygote in self._zygotes.items()}
        named = {name: list(getattr(found, name)) for name in ("missing", "hints", "tried")}
        return {"level": found.level, **named, "boot_s": boots}

    def submit(self, request: Request) -> concurrent.futures.Future[Result]:
        """Queue a run from any thread; blocks while the queue is full. Cancelling the future kills the run."""
        self._places.acquire()
        return self._submit(request)

    async def run(self, request: Request) -> Result:
        """Run to the end, from any event loop. Cancellation kills the run."""
        if not self._places.acquire(blocking=False):
            await asyncio.to_thread(self._places.acquire)
        return await asyncio.wrap_future(self._submit(request))

    def _submit(self, request: Request) -> concurrent.futures.Future[Result]:
        try:
            self._check(request)
            if self._thread is None:
                self.start()
            future = self._call(self._serve(request))
        except BaseException:
            self._places.release()
            raise
        future.add_done_callback(lambda _: self._places.release())
        return future

    def _call(self, coroutine: Coroutine[Any, Any, Any]) -> concurrent.futures.Future[Any]:
        if self._loop is None or self._thread is None:
            coroutine.close()
            raise WorkbenchError("This executor is closed: make a new one.")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def _check(self, request: Request) -> None:
        if request.collect is not None and (not request.collect or "/" in request.collect or "\0" in request.collect):
            raise WorkbenchError(f"collect={request.collect!r} is not accepted: expected a file name without folders.")
        if request.collect_bytes is not None and request.collect_bytes < 1:
            raise WorkbenchError(f"collect_bytes={request.collect_bytes} is not accepted: expected at least 1.")
        if request.public_dir is not None:
            workfolder.check_public(Path(request.public_dir), self._roots)

    def _publish(self, folder: Path) -> None:
        self._public.setdefault(folder, f"{len(self._public)}")

    # One run

    async def _serve(self, request: Request) -> Result:
        """Wait for a free slot and run; a run that was lost by us is run once more."""
        async with self._slots:
            assert self._isolation is not None
            for _ in range(2):
                try:
                    seen = await self._once(request)
                except (OSError, WorkbenchError) as error:
                    cap = request.limits.output_kb * 1024
                    seen = Observed(Capped(cap, tail=False), Capped(cap, tail=True), lost=str(error))
                if seen.lost is None:
                    break
                log.warning("a run was lost: %s", seen.lost)
            return judge(seen, request.limits, self._isolation.level)

    async def _once(self, request: Request) -> Observed:
        assert self._isolation is not None
        public = Path(request.public_dir).resolve() if request.public_dir is not None else None
        if public is not None:
            self._publish(public)
        zygote = await self._zygote(request.flavour, public)
        namespaces = self._isolation.means.outer != "none"
        folder = None if namespaces else workfolder.make(public)
        zygote.runs += 1
        zygote.active += 1
        try:
            watch = Watch(zygote.child(), request, inherited=zygote.inherited, namespaces=namespaces)
            asyncio.get_running_loop().call_soon(self._refill, zygote)
            inside = f"/data/{zygote.public[public]}" if public is not None else None
            return await watch.observe(inside, str(folder) if folder else None)
        finally:
            zygote.active -= 1
            zygote.reap()
            self._end_retired()
            if folder is not None:  # aside: a script may have left a tree that takes seconds to remove
                asyncio.get_running_loop().run_in_executor(None, workfolder.remove, folder)

    def _refill(self, zygote: Zygote) -> None:
        with contextlib.suppress(OSError):  # it died: the next request finds out and starts another
            zygote.park(min(self._workers, PARKED))

    # Zygotes

    async def _zygote(self, flavour: str, public: Path | None = None) -> Zygote:
        """One that is alive and shows `public`; boots when there is none."""
        while True:
            zygote = self._zygotes.get(flavour)
            if zygote is not None and zygote.alive and (public is None or public in zygote.public):
                if self._worn(zygote):
                    self._boot(flavour)  # in the background: this one serves until the new one is warm
                return zygote
            await asyncio.shield(self._boot(flavour))

    def _worn(self, zygote: Zygote) -> bool:
        if zygote.runs % 100:
            return False
        return zygote.runs >= RECYCLE_RUNS or zygote.resident() > RECYCLE_GROWTH * zygote.inherited + 2**24

    def _boot(self, flavour: str) -> asyncio.Task[Zygote]:
        task = self._booting.get(flavour)
        if task is None:
            task = self._booting[flavour] = asyncio.get_running_loop().create_task(self._replace(flavour))
            task.add_done_callback(
                lambda done: (self._booting.pop(flavour, None), done.cancelled() or done.exception())
            )
        return task

    async def _replace(self, flavour: str) -> Zygote:
        assert self._isolation is not None
        zygote = await Zygote.boot(self._isolation.means, flavour, self._public, self._roots, self._seccomp)
        old = self._zygotes.get(flavour)
        self._zygotes[flavour] = zygote
        self._refill(zygote)
        if old is not None:
            old.retired = True
            self._retiring.add(old)
            self._end_retired()
        return zygote

    def _end_retired(self) -> None:
        for zygote in [zygote for zygote in self._retiring if zygote.active == 0]:
            zygote.kill()
            self._retiring.discard(zygote)


def _close(reference: weakref.ref[Executor]) -> None:
    executor = reference()
    if executor is not None:
        executor.close()
