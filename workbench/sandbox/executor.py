"""The executor: runs scripts that nobody has read, many at once, each shut in by the kernel.

One `Executor` keeps some *zygotes* per flavour, processes in an outer sandbox that have the libraries imported. Per run
the least loaded one clones a child into namespaces of its own; the child locks itself in and becomes the script. This
side stays outside: it hands over the request, measures, caps, kills and collects the one file, after every process is
dead.

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
- kernel memory for maps, locks of files and watches of epoll: only CPU time and the number of processes bound it;
- all CPU of children whose parent ignores SIGCHLD: what they use after the last look, each 50 ms; wall time bounds it;
- at level D below Landlock 6, other processes of the same user: a script can signal them, the trainer too, though not
  its own init and zygote;
- at level D, the number of processes of each run alone: beside a fork bomb another run may be refused a thread; use of
  the disk is polled, without open files that have no name; changes of mode, owner and time succeed without effect;
- randomness that a script takes from the operating system; `random` and `numpy.random` are seeded per run;
- a script that finds the zygote's frames with `sys._getframe`: it can, there is nothing in them.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from workbench.sandbox import isolation, workfolder
from workbench.sandbox.isolation import Isolation
from workbench.sandbox.places import Places
from workbench.sandbox.records import FLAVOURS, Flavour, Limits, Request, Result, at_least_one, some_of
from workbench.sandbox.streams import Capped
from workbench.sandbox.verdicts import Observed, judge
from workbench.sandbox.watch import KILL_S, START_S, Watch
from workbench.sandbox.zygotes import BOOT_S, NotStarted, Zygote
from workbench.types import WorkbenchError

__all__ = ["Executor", "Limits", "Request", "Result"]

log = logging.getLogger(__name__)

TRIES = 2
"""A run that was lost by us is run once more."""

Seat = tuple[Flavour, int]
"""Which of the zygotes of a flavour."""

RECYCLE_RUNS = 2000
"""Runs after which a zygote is replaced."""
RECYCLE_GROWTH = 1.5
"""Growth of its private memory after which a zygote is replaced."""
REST_S = 30.0
"""A zygote that did not come up is not tried again earlier, as long as another one serves."""
PARKED = 2
"""Most children kept cloned in advance, per zygote."""


class Executor:
    """Runs `Request`s, `workers` at once, on a thread of its own.

    data_roots: folders below which every `Request.public_dir` lies. workers: runs at once. min_level: weakest isolation
    accepted. unsafe: accept level E, where model code runs with your rights. flavours: zygotes to keep ready.
    queue: requests waiting or running before `submit` blocks. zygotes: of each flavour, one for every four workers
    where not given; a full one takes some 200 MB. without: means not to use although they are there (bubblewrap,
    namespaces, landlock, seccomp), to see what a weaker machine would do.
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
        zygotes: int | None = None,
        without: Sequence[str] = (),
    ) -> None:
        at_least_one(workers=workers, queue=queue, zygotes=zygotes)
        self._roots = workfolder.data_folders(data_roots)
        self._workers, self._min_level, self._unsafe = workers, min_level, unsafe
        self._flavours = some_of("flavours", flavours, FLAVOURS)
        self._without = some_of("without", without, isolation.MEANS)
        self._count = max(1, workers // 4) if zygotes is None else zygotes
        self._places = Places(queue)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._isolation: Isolation | None = None
        self._zygotes: dict[Seat, Zygote] = {}
        self._retiring: set[Zygote] = set()
        self._booting: dict[Seat, asyncio.Task[None]] = {}
        self._failed: dict[Seat, float] = {}
        self._public: dict[Path, str] = {}
        self._base: workfolder.Base | None = None
        self._seccomp = b""
        self._closed, self._owner = False, os.getpid()

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
        self._call(self._warm()).result()
        return self

    def _open_thread(self) -> None:
        if self._isolation is not None and self._isolation.means.outer == "none":
            self._base = workfolder.Base()
        loop = asyncio.new_event_loop()
        self._loop = loop
        self._slots = asyncio.Semaphore(self._workers)
        self._thread = threading.Thread(target=loop.run_forever, name="sandbox", daemon=True)
        self._thread.start()
        atexit.register(_close, weakref.ref(self))

    def close(self) -> None:
        """Kill what runs, end the zygotes and the thread. Idempotent; waiting requests are cancelled."""
        if os.getpid() != self._owner:
            return  # a fork of ours ends: thread and zygotes are its parent's
        with self._lock:
            self._closed = True
            thread, loop, self._thread = self._thread, self._loop, None
        if thread is None or loop is None:
            return
        asyncio.run_coroutine_threadsafe(self._shut(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        if self._base is not None:
            self._base.close()

    async def _shut(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for zygote in (*self._zygotes.values(), *self._retiring):
            zygote.kill()
        self._zygotes.clear()
        self._retiring.clear()
        await asyncio.get_running_loop().shutdown_default_executor()  # folders that are being removed

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:  # an interrupt, or one zygote of several: what is there must not stay
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Use

    @property
    def workers(self) -> int:
        """Runs at once."""
        return self._workers

    @property
    def level(self) -> str:
        """Isolation level in use, A-E; found by `start`."""
        if self._isolation is None:
            self.start()
        assert self._isolation is not None
        return self._isolation.level

    @staticmethod
    def longest_s(limits: Limits) -> float:
        """Seconds that a run may take once it has its turn: as often as it can be lost, each time by a new zygote."""
        return TRIES * (BOOT_S + START_S + limits.wall_s + KILL_S)

    def describe(self) -> dict[str, Any]:
        """level, missing, hints, tried (as `workbench doctor` tells); once started, seconds until zygotes were warm.

        boot_s: of the slowest one, by flavour.
        """
        found = self._isolation or isolation.probe(self._without)
        boots: dict[str, float] = {}
        for (flavour, _), zygote in tuple(self._zygotes.items()):
            boots[flavour] = max(boots.get(flavour, 0.0), round(zygote.boot_s, 2))
        named = {name: list(getattr(found, name)) for name in ("missing", "hints", "tried")}
        return {"level": found.level, **named, "boot_s": boots}

    def submit(self, request: Request) -> concurrent.futures.Future[Result]:
        """Queue a run from any thread; blocks while the queue is full. Cancelling the future kills the run."""
        with self._places.waiting() as place:
            place.result()
        return self._submit(request)

    async def run(self, request: Request) -> Result:
        """Run to the end, from any event loop. Cancellation kills the run."""
        with self._places.waiting() as place:
            await asyncio.wrap_future(place)
        if self._thread is None:
            try:
                await asyncio.to_thread(self.start)  # seconds; the caller's loop goes on
            except BaseException:
                self._places.give()
                raise
        return await asyncio.wrap_future(self._submit(request))

    def _submit(self, request: Request) -> concurrent.futures.Future[Result]:
        try:
            if request.public_dir is not None:
                workfolder.check_public(Path(request.public_dir), self._roots)
            if self._thread is None:
                self.start()
            future = self._call(self._serve(request))
        except BaseException:
            self._places.give()
            raise
        future.add_done_callback(lambda _: self._places.give())
        return future

    def _call(self, coroutine: Coroutine[Any, Any, Any]) -> concurrent.futures.Future[Any]:
        with self._lock:  # what is handed over before `close` is ended by it
            if self._loop is not None and self._thread is not None:
                return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        coroutine.close()
        raise WorkbenchError("This executor is closed: make a new one.")

    def _publish(self, folder: Path) -> None:
        self._public.setdefault(folder, f"{len(self._public)}")

    # One run

    async def _serve(self, request: Request) -> Result:
        """Wait for a free slot and run, `TRIES` times at most."""
        async with self._slots:
            assert self._isolation is not None
            for _ in range(TRIES):
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
        folder = workfolder.make(public, self._base.place) if self._base is not None else None
        zygote.runs += 1
        zygote.active += 1
        try:
            watch = Watch(zygote.child(), request, inherited=zygote.inherited, namespaces=namespaces)
            asyncio.get_running_loop().call_soon(self._refill, zygote)
            inside = f"/data/{zygote.public[public]}" if public is not None else None
            seen = await watch.observe(inside, str(folder) if folder else None)
            if seen.lost is not None and not zygote.alive:
                seen.lost = "The sandbox's own process (the zygote, from which scripts are started) ended meanwhile."
            return seen
        finally:
            zygote.active -= 1
            zygote.reap()
            self._end_retired()
            if folder is not None:  # aside: a script may have left a tree that takes seconds to remove
                _aside(workfolder.remove, folder)

    def _refill(self, zygote: Zygote) -> None:
        with contextlib.suppress(OSError):  # it died: the next request finds out and starts another
            zygote.park(min(self._workers, PARKED))

    # Zygotes

    async def _warm(self) -> None:
        """Wait until all that are to be kept ready are there. Raises `NotStarted` when one does not come up."""
        seats = [seat for flavour in self._flavours for seat in self._seats(flavour)]
        boots = [asyncio.shield(self._boot(seat)) for seat in seats if not self._serves(seat)]
        await asyncio.gather(*boots)

    async def _zygote(self, flavour: Flavour, public: Path | None = None) -> Zygote:
        """The least loaded one that serves; the others boot in the background, and are waited for if there is none."""
        while True:
            seats = self._seats(flavour)
            serving = [seat for seat in seats if self._serves(seat, public)]
            resting = {seat for seat, since in self._failed.items() if serving and time.monotonic() - since < REST_S}
            boots = [self._boot(seat) for seat in seats if seat not in serving and seat not in resting]
            if serving:
                seat = min(serving, key=lambda seat: self._zygotes[seat].active)
                if self._worn(self._zygotes[seat]):
                    self._boot(seat)  # this one serves until the new one is warm
                return self._zygotes[seat]
            await _first(boots)

    def _seats(self, flavour: Flavour) -> list[Seat]:
        return [(flavour, number) for number in range(self._count)]

    def _serves(self, seat: Seat, public: Path | None = None) -> bool:
        """Whether it is alive and shows `public`."""
        zygote = self._zygotes.get(seat)
        return zygote is not None and zygote.alive and (public is None or public in zygote.public)

    def _worn(self, zygote: Zygote) -> bool:
        if zygote.runs % 100:
            return False
        return zygote.runs >= RECYCLE_RUNS or zygote.resident() > RECYCLE_GROWTH * zygote.inherited + 2**24

    def _boot(self, seat: Seat) -> asyncio.Task[None]:
        task = self._booting.get(seat)
        if task is None:
            task = self._booting[seat] = asyncio.get_running_loop().create_task(self._replace(seat))
            task.add_done_callback(lambda done: (self._booting.pop(seat, None), done.cancelled() or done.exception()))
        return task

    async def _replace(self, seat: Seat) -> None:
        assert self._isolation is not None
        try:
            zygote = await Zygote.boot(self._isolation.means, seat[0], self._public, self._roots, self._seccomp)
        except NotStarted as error:
            log.warning("%s", error)
            self._failed[seat] = time.monotonic()
            raise
        old = self._zygotes.get(seat)
        self._zygotes[seat] = zygote
        self._refill(zygote)
        if old is not None:
            old.retired = True
            self._retiring.add(old)
            self._end_retired()

    def _end_retired(self) -> None:
        for zygote in [zygote for zygote in self._retiring if zygote.active == 0]:
            self._retiring.discard(zygote)
            if self._base is None:
                zygote.kill()
            else:  # without namespaces it has to end what is below it first
                _aside(zygote.kill)


def _aside(work: Callable[..., None], *arguments: object) -> None:
    """On a thread of the pool, so that no run waits for it."""
    with contextlib.suppress(RuntimeError):  # refused while the process ends, and all that is ours with it
        asyncio.get_running_loop().run_in_executor(None, work, *arguments)


async def _first(boots: Sequence[asyncio.Task[None]]) -> None:
    """Wait until one has come up. Raises the last one's `NotStarted` when none does."""
    for number, boot in enumerate(asyncio.as_completed(boots), 1):
        try:
            await boot
            return
        except NotStarted:
            if number == len(boots):
                raise


def _close(reference: weakref.ref[Executor]) -> None:
    executor = reference()
    if executor is not None:
        executor.close()
