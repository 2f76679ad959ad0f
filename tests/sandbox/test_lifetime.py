"""Nothing of a run, of an executor or of its owner outlives them: no process, no descriptor, no file; however they end."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from catalogue import patience

from workbench.sandbox import isolation, jail, outer, workfolder
from workbench.sandbox.executor import PARKED, Executor, Limits, Request
from workbench.types import Verdict, WorkbenchError

QUICK = Limits(cpu_s=2.0, wall_s=5.0, memory_mb=256)
SEAT = ("thin", 0)
LEVELS = {"B": (), "C": ("bubblewrap",), "D": ("namespaces",), "D, Landlock 5": ("namespaces",)}


def _use(level: str, patch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """What to leave out for a level, which is then the one in use; D as older kernels have it, too."""
    without = LEVELS[level]
    found = isolation.probe(without)
    if found.level != level[0]:
        pytest.skip(f"this machine gives {found.level} there: see `workbench doctor`")
    if level == "D, Landlock 5":
        older = replace(found, means=replace(found.means, landlock=5))
        patch.setattr(isolation, "require", lambda *_, **__: older)
    return without


def _until(condition: Callable[[], object], otherwise: Callable[[], str], seconds: float = 20) -> None:
    """Wait for it, for so long on an idle machine; `otherwise` tells how it is when the time is up."""
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        assert waited < patience(seconds), f"{otherwise()}, after {waited:.1f} s at load {os.getloadavg()[0]}"
        time.sleep(0.02)


def _marked(mark: str) -> list[int]:
    return [pid for pid in psutil.pids() if mark in _words(pid)[:1]]


def _words(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    return []


def _processes() -> dict[int, str]:
    """All below this one, by pid, ended ones too."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found[process.pid] = process.status()
    return found


def _folders(pid: int) -> list[str]:
    """Everything of a process with an executor in the folders for temporary files."""
    names = [*os.listdir(tempfile.gettempdir()), *os.listdir("/dev/shm")]
    return [name for name in names if name.startswith("workbench-") and f"-{pid}-" in name]


def _mounts() -> list[str]:
    """Without those of other tests."""
    return [line for line in Path("/proc/self/mounts").read_text().splitlines() if "/pytest-" not in line]


# Runs


@pytest.mark.parametrize("level", list(LEVELS))
@pytest.mark.parametrize("count", [12, pytest.param(50, marks=pytest.mark.slow)])
def test_timeouts_leave_no_process(level: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = f"sleeper-{os.getpid()}"
    code = (
        "import os, time\nfor n in range(3):\n    if os.fork() == 0:\n        if n: os.setsid()\n"
        f"        if n == 2 and os.fork(): os._exit(0)\n        os.execv('/bin/sleep', ['{mark}', '73'])\ntime.sleep(60)"
    )
    limits = Limits(wall_s=0.3, cpu_s=2.0, memory_mb=256, processes=1000)  # at D those of other executors count too
    with Executor([], 4, flavours=("thin",), without=_use(level, monkeypatch)) as executor:
        executor.submit(Request("", limits=QUICK, flavour="thin")).result(30)
        before = len(_processes())  # at least: those cloned in advance may still be missing
        futures = [executor.submit(Request(code, limits=limits, flavour="thin")) for _ in range(count)]
        _until(lambda: _marked(mark), lambda: "the sleepers did not start")
        assert [future.result(60).verdict for future in futures] == [Verdict.TIMEOUT] * count
        assert not _marked(mark)
        settled = lambda: psutil.STATUS_ZOMBIE not in _processes().values() and len(_processes()) <= before + 2 * PARKED  # noqa: E731
        _until(settled, lambda: f"{before} became {_processes()}", 5)


MISHAPS: dict[str, tuple[str, set[Verdict]]] = {
    "exit at once": ("import os; os._exit(3)", {Verdict.RUNTIME_ERROR}),
    "10 GB": ("x = bytearray(10 * 2**30)", {Verdict.MEMORY_LIMIT}),
    "10 GB by and by": ("x = []\nwhile True: x.append(bytearray(10**7))", {Verdict.MEMORY_LIMIT}),
    "fork bomb": ("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", {Verdict.TIMEOUT}),
    "no Python": ("def f(:", {Verdict.RUNTIME_ERROR}),
    "null bytes": ("x = 1\0", {Verdict.RUNTIME_ERROR}),
    "always late": ("import time\nwhile True: time.sleep(1)", {Verdict.TIMEOUT}),
}


@pytest.mark.parametrize("level", list(LEVELS))
def test_each_mishap_is_one_verdict_and_the_executor_lives(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Executor([], 4, flavours=("thin",), without=_use(level, monkeypatch)) as executor:
        waiting = {}
        for name, (code, verdicts) in MISHAPS.items():
            # Where the kernel does not share by sessions (sched_autogroup_enabled=0), a fork bomb slows its neighbours.
            limits = Limits(cpu_s=0.7, wall_s=1.2 if Verdict.TIMEOUT in verdicts else 20, memory_mb=256)
            waiting[name] = executor.submit(Request(code, limits=limits, flavour="thin"))
        found = {name: future.result(60) for name, future in waiting.items()}
        wrong = {name: result for name, result in found.items() if result.verdict not in MISHAPS[name][1]}
        assert wrong == {}
        assert all(result.reason for result in found.values())
        assert executor.submit(Request("print('fine')", limits=QUICK, flavour="thin")).result(30).stdout == "fine\n"


@pytest.mark.parametrize("level", list(LEVELS))
def test_what_is_always_late_ends_in_time_and_its_words_come_back(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool that waits for another, ignores every signal and has said what it waits for."""
    code = (
        "import signal, subprocess, sys\nfor n in (1, 2, 13, 15): signal.signal(n, signal.SIG_IGN)\n"
        "print('half of the answer', flush=True); print('Error: the model server does not answer', file=sys.stderr)\n"
        "while True: subprocess.run(['sleep', '30'])"
    )
    asked = Request(code, limits=Limits(wall_s=0.5, memory_mb=256), flavour="thin")
    with Executor([], 1, flavours=("thin",), without=_use(level, monkeypatch)) as executor:
        for _ in range(3):
            began = time.monotonic()
            result = executor.submit(asked).result(30)
            assert time.monotonic() - began < 0.5 + patience(1.5)
            assert (result.verdict, result.reason) == (Verdict.TIMEOUT, "Stopped after 0.5 s of wall time.")
            assert result.stdout == "half of the answer\n"
            assert result.stderr == "Error: the model server does not answer\n"


def test_a_script_without_its_init_is_ended_and_judged() -> None:
    """Where no pid namespace ties them together, the zygote ends what an init leaves behind."""
    mark = f"stray-{os.getpid()}"
    code = f"import os\nif os.fork(): os.execv('/bin/sleep', ['{mark}', '71'])\nos.setsid()\nif os.fork() == 0: os.execv('/bin/sleep', ['{mark}', '72'])"
    with Executor([], 1, flavours=("thin",), without=("namespaces",)) as executor:
        waiting = executor.submit(Request(code, limits=Limits(wall_s=60), flavour="thin"))
        _until(lambda: len(_marked(mark)) == 2, lambda: "the script did not start")
        inits = {psutil.Process(pid).ppid() for pid in _marked(mark)}
        zygote = executor._zygotes[SEAT].pid
        os.kill(next(pid for pid in inits if psutil.Process(pid).ppid() == zygote), signal.SIGKILL)
        result = waiting.result(10)
        assert (result.verdict, result.signal) == (Verdict.RUNTIME_ERROR, 9)
        assert "watches over the script" in str(result.reason)
        _until(lambda: not _marked(mark), lambda: "the script outlived its init", 5)
        assert executor.submit(Request("print(1)", limits=QUICK, flavour="thin")).result(30).stdout == "1\n"


# Executors


def test_an_executor_outlives_the_thread_that_started_it() -> None:
    """Bubblewrap ends with the thread that started it, so that must be the executor's own."""
    executor = Executor([], workers=1, flavours=("thin",))
    starter = threading.Thread(target=executor.start)
    starter.start()
    starter.join()
    pid = executor._zygotes[SEAT].pid
    time.sleep(0.2)
    try:
        assert executor.submit(Request("print(1)", limits=QUICK, flavour="thin")).result(30).stdout == "1\n"
        assert executor._zygotes[SEAT].pid == pid
    finally:
        executor.close()


class Mistake(Exception):
    """Of the user's."""


@pytest.mark.parametrize(("level", "raised"), [*((level, None) for level in LEVELS), ("B", Mistake), ("D", Mistake)])
def test_a_closed_executor_leaves_nothing(
    level: str, raised: type[BaseException] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = _use(level, monkeypatch)

    def once() -> None:
        with (
            contextlib.suppress(Mistake),
            Executor([], 2, zygotes=2, flavours=("thin",), without=without) as executor,
        ):
            asked = Request("import time; time.sleep(60)", limits=Limits(wall_s=60), flavour="thin")
            waiting.extend(executor.submit(asked) for _ in range(3))
            _until(
                lambda: sum(zygote.active for zygote in executor._zygotes.values()) == 2, lambda: "they did not start"
            )
            if raised is not None:
                raise raised
        executor.close()  # once more is no error

    def outside() -> tuple[object, ...]:
        descriptors = len(os.listdir("/proc/self/fd"))
        return set(_processes()), descriptors, threading.active_count(), _folders(os.getpid()), _mounts()

    waiting: list[object] = []
    once()
    before = outside()
    for _ in range(2):
        once()
    _until(lambda: outside() == before, lambda: f"{before} became {outside()}", 2)
    assert all(future.cancelled() for future in waiting)  # type: ignore[attr-defined]


def test_a_closed_executor_takes_nothing_more() -> None:
    executor = Executor([], workers=1, flavours=("thin",), queue=1).start()
    slow = Request("import time; time.sleep(60)", limits=Limits(wall_s=60), flavour="thin")
    running, refused = executor.submit(slow), []

    def late() -> None:
        with pytest.raises(WorkbenchError, match="closed"):
            executor.submit(slow)
        refused.append(True)

    waiting = threading.Thread(target=late)  # in a full queue
    waiting.start()
    time.sleep(0.2)
    executor.close()
    waiting.join(5)
    assert refused == [True]
    with pytest.raises((CancelledError, WorkbenchError)):
        running.result(5)
    with pytest.raises(WorkbenchError, match="closed"):
        executor.start()


def test_an_executor_that_does_not_come_up_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """One zygote is there, the next is not."""
    before, threads = set(_processes()), threading.active_count()
    real, started = outer.command, []

    def command(means: outer.Means, *arguments: object) -> list[str]:
        started.append(means)
        return real(means, *arguments) if len(started) == 1 else ["/bin/sh", "-c", "sleep 0.5; echo no room >&2"]

    monkeypatch.setattr(outer, "command", command)
    with pytest.raises(WorkbenchError, match="no room"), Executor([], 1, zygotes=2, flavours=("thin",)):
        pass
    assert len(started) == 2
    assert (set(_processes()), threading.active_count()) == (before, threads)


# Owners


OWNER = """
import sys
from dataclasses import replace
from workbench.sandbox import isolation
from workbench.sandbox.executor import Executor, Limits, Request
without, code, landlock = {without!r}, {code!r}, {landlock}
found = isolation.probe(without)
if landlock: found = replace(found, means=replace(found.means, landlock=landlock))
isolation.require = lambda *_, **__: found
with Executor([], 3, zygotes=2, flavours=("thin",), without=without) as executor:
    print("up", flush=True)
    while True:
        waiting = [executor.submit(Request(code, limits=Limits(wall_s=60), flavour="thin")) for _ in range(2)]
        waiting += [executor.submit(Request("open('x', 'w').write('x')", flavour="thin")) for _ in range(20)]
        for future in waiting[2:]: future.result()
        if not {endless}: waiting[0].result()
        for future in waiting[:2]: future.cancel()
"""


@contextlib.contextmanager
def _owner(level: str, patch: pytest.MonkeyPatch, *, endless: bool) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A process with an executor and runs in flight, whose orphans come to us; and the mark of what its runs start."""
    without, mark = _use(level, patch), f"left-{os.getpid()}-{random.random()}"
    inside = (
        f"import os, time\nif os.fork() == 0:\n    os.setsid()\n    os.execv('/bin/sleep', ['{mark}', '74'])\n"
        f"while True: open('y', 'w').write('y'); time.sleep(0.01)"
    )
    landlock = 5 if level == "D, Landlock 5" else 0
    code = OWNER.format(without=without, code=inside, landlock=landlock, endless=endless)
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert owner.stdout is not None
    assert owner.stderr is not None
    jail.adopt_orphans()
    try:
        with owner.stdout, owner.stderr:
            assert owner.stdout.readline() == b"up\n", owner.stderr.read()
            yield owner, mark
    finally:
        owner.kill()
        owner.wait()
        jail.prctl(36, 0)


def _reap(ours: set[int]) -> bool:
    """Collect what has come to us; whether only `ours` are left."""
    for pid in set(_processes()) - ours:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return set(_processes()) <= ours


def _nothing_is_left_of(owner: subprocess.Popen[bytes], mark: str, ours: set[int], mounts: list[str]) -> None:
    owner.wait(10)
    gone = lambda: not _marked(mark) and _reap(ours) and not _folders(owner.pid)  # noqa: E731
    _until(gone, lambda: f"{_processes()} and {_folders(owner.pid)} outlived their owner", 2)
    assert _mounts() == mounts


@pytest.mark.parametrize(
    ("level", "count"),
    [("B", 3), ("C", 1), ("D", 3), ("D, Landlock 5", 1)]
    + [pytest.param(level, 50, marks=[pytest.mark.slow, pytest.mark.timeout(900)]) for level in LEVELS],
)
def test_nothing_outlives_a_killed_owner(level: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, mounts, moments = set(_processes()), _mounts(), random.Random(count)
    for _ in range(count):
        with _owner(level, monkeypatch, endless=False) as (owner, mark):
            time.sleep(moments.uniform(0, 0.8))
            owner.kill()
            _nothing_is_left_of(owner, mark, ours, mounts)


@pytest.mark.parametrize("level", list(LEVELS))
def test_nothing_outlives_an_interrupted_owner(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, mounts = set(_processes()), _mounts()
    with _owner(level, monkeypatch, endless=False) as (owner, mark):
        _until(lambda: _marked(mark), lambda: "the scripts did not start")
        owner.send_signal(signal.SIGINT)
        assert owner.stderr is not None
        assert owner.stderr.read().endswith(b"KeyboardInterrupt\n")
        _nothing_is_left_of(owner, mark, ours, mounts)
        assert owner.returncode in (-signal.SIGINT, 130)


def test_what_an_earlier_owner_could_not_remove_goes_with_the_next() -> None:
    with subprocess.Popen([sys.executable, "-c", "pass"]) as gone:
        pass
    left = Path(tempfile.gettempdir()) / f"{workfolder._prefix()}{gone.pid}-x"
    (left / "work" / "deep").mkdir(parents=True)
    mine = workfolder.make(None)
    workfolder.sweep()
    assert not left.exists()
    assert mine.exists()
    workfolder.remove(mine)
