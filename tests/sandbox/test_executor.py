"""The executor as its callers see it: many at once, cancelling, a zygote that dies, closing, levels."""

from __future__ import annotations

import asyncio
import itertools
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import psutil
import pytest

from workbench.config import ROOT
from workbench.sandbox import isolation, workfolder
from workbench.sandbox.executor import Executor, Limits, Request
from workbench.types import Verdict, WorkbenchError

QUICK = Limits(cpu_s=2.0, wall_s=5.0, memory_mb=256)


def test_many_at_once_come_back_each_with_its_own(executor: Executor) -> None:
    futures = [executor.submit(Request(f"print({n})", limits=QUICK)) for n in range(40)]
    assert [future.result(60).stdout for future in futures] == [f"{n}\n" for n in range(40)]


def test_cancelling_ends_the_run(executor: Executor) -> None:
    slow = executor.submit(Request("import time; time.sleep(60)", limits=Limits(wall_s=60)))
    time.sleep(0.5)
    assert slow.cancel() or slow.cancelled()
    with pytest.raises(CancelledError):
        slow.result(5)
    began = time.monotonic()
    assert executor.submit(Request("print(1)", limits=QUICK)).result(30).verdict is Verdict.OK
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    ("deaths", "verdict", "stdout"),
    [(1, Verdict.OK, "through\n"), (2, Verdict.INFRASTRUCTURE, "")],
    ids=["once: run again", "twice: ours to blame"],
)
def test_a_run_whose_zygote_dies_is_run_once_more(deaths: int, verdict: Verdict, stdout: str) -> None:
    with Executor([], workers=2, flavours=("thin",)) as executor:
        code = "import time; time.sleep(1); print('through')"
        futures = [executor.submit(Request(code, limits=QUICK, flavour="thin")) for _ in range(2)]
        dead = 0
        for _ in range(deaths):
            dead = _kill_serving(executor, dead)
        results = [future.result(60) for future in futures]
        assert [(result.verdict, result.stdout) for result in results] == [(verdict, stdout)] * 2, results
        again = executor.submit(Request("print('on')", limits=QUICK, flavour="thin")).result(60)
        assert again.stdout == "on\n"


def _kill_serving(executor: Executor, dead: int) -> int:
    """SIGKILL the zygote, another than `dead`, that serves two runs; its pid."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        zygote = executor._zygotes.get("thin")
        if zygote is not None and zygote.active == 2 and zygote.pid not in (-1, dead):
            os.kill(pid := zygote.pid, signal.SIGKILL)
            return pid
        time.sleep(0.01)
    raise AssertionError("the two scripts did not start")


def test_worn_zygotes_are_replaced_without_losing_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.sandbox.executor.RECYCLE_RUNS", 100)
    with Executor([], workers=2, flavours=("thin",)) as executor:
        first = executor._zygotes["thin"].pid
        futures = [executor.submit(Request(f"print({n})", limits=QUICK, flavour="thin")) for n in range(160)]
        assert [future.result(60).stdout for future in futures] == [f"{n}\n" for n in range(160)]
        until = time.monotonic() + 10
        while executor._retiring or executor._booting:
            assert time.monotonic() < until
            time.sleep(0.02)
        assert executor._zygotes["thin"].pid != first
        assert not psutil.pid_exists(first)


def test_runs_are_awaited_from_any_event_loop(executor: Executor) -> None:
    async def several() -> list[str]:
        runs = [executor.run(Request(f"print({n} * 2)", limits=QUICK)) for n in range(6)]
        return [result.stdout for result in await asyncio.gather(*runs)]

    assert asyncio.run(several()) == [f"{n * 2}\n" for n in range(6)]

    async def cancelled() -> float:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(executor.run(Request("import time; time.sleep(50)", limits=Limits(wall_s=60))), 0.4)
        return time.monotonic() - began

    assert asyncio.run(cancelled()) < 3


def test_a_full_queue_makes_the_next_wait() -> None:
    with Executor([], workers=1, flavours=("thin",), queue=2) as executor:
        slow = Request("import time; time.sleep(0.6)", limits=QUICK, flavour="thin")
        first, second = executor.submit(slow), executor.submit(slow)
        began = time.monotonic()
        third = executor.submit(Request("print(3)", limits=QUICK, flavour="thin"))
        assert time.monotonic() - began > 0.2
        assert first.done()
        assert second.result(30).verdict is Verdict.OK
        assert third.result(30).stdout == "3\n"


def test_an_executor_outlives_the_thread_that_started_it() -> None:
    """Bubblewrap ends with the thread that started it, so that must be the executor's own."""
    executor = Executor([], workers=1, flavours=("thin",))
    starter = threading.Thread(target=executor.start)
    starter.start()
    starter.join()
    pid = executor._zygotes["thin"].pid
    time.sleep(0.2)
    try:
        assert executor.submit(Request("print(1)", limits=QUICK, flavour="thin")).result(30).stdout == "1\n"
        assert executor._zygotes["thin"].pid == pid
    finally:
        executor.close()


@pytest.mark.parametrize("without", [(), ("bubblewrap",), ("namespaces",), ("namespaces", "Landlock 6")])
def test_nothing_outlives_a_killed_owner(without: tuple[str, ...]) -> None:
    """SIGKILL of the process with the executor ends the zygotes and the runs; what they leave is removed later."""
    mark = f"left-{os.getpid()}"
    inside = f"import os; os.execv('/bin/sh', ['{mark}', '-c', 'sleep 70; true'])"
    code = (
        "from dataclasses import replace\nfrom workbench.sandbox import isolation\n"
        "from workbench.sandbox.executor import Executor, Request, Limits\n"
        f"without = {without[:1]!r}\nfound = isolation.probe(without)\n"
        f"if {without!r}[1:]: found = replace(found, means=replace(found.means, landlock=5))\n"
        "isolation.require = lambda *_, **__: found\n"
        "e = Executor([], 1, flavours=('thin',), without=without).start()\n"
        f"e.submit(Request({inside!r}, limits=Limits(wall_s=60), flavour='thin')); print('up', flush=True); input()"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert owner.stdout is not None
    assert owner.stdin is not None
    with owner.stdout, owner.stdin:
        assert owner.stdout.readline() == b"up\n"
        _until(lambda: _marked(mark), "the script did not start")
        owner.kill()
        owner.wait()
        _until(lambda: not _marked(mark), "the script outlived its owner")
    left = f"workbench-run-*-{owner.pid}-*"
    assert any(Path(tempfile.gettempdir()).glob(left)) is (isolation.probe(without[:1]).means.outer == "none")
    mine = workfolder.make(None)
    workfolder.sweep()
    assert not any(Path(tempfile.gettempdir()).glob(left))
    assert mine.exists()
    workfolder.remove(mine)


def test_a_script_without_its_init_is_ended_and_judged() -> None:
    """Where no pid namespace ties them together, the zygote ends what an init leaves behind."""
    mark = f"stray-{os.getpid()}"
    code = f"import os\nif os.fork(): os.execv('/bin/sleep', ['{mark}', '71'])\nos.setsid()\nif os.fork() == 0: os.execv('/bin/sleep', ['{mark}', '72'])"
    with Executor([], 1, flavours=("thin",), without=("namespaces",)) as executor:
        waiting = executor.submit(Request(code, limits=Limits(wall_s=60), flavour="thin"))
        _until(lambda: len(_marked(mark)) == 2, "the script did not start")
        inits = {psutil.Process(pid).ppid() for pid in _marked(mark)}
        os.kill(
            next(pid for pid in inits if psutil.Process(pid).ppid() == executor._zygotes["thin"].pid), signal.SIGKILL
        )
        result = waiting.result(10)
        assert (result.verdict, result.signal) == (Verdict.RUNTIME_ERROR, 9)
        assert "watches over the script" in str(result.reason)
        _until(lambda: not _marked(mark), "the script outlived its init", 5)
        assert executor.submit(Request("print(1)", limits=QUICK, flavour="thin")).result(30).stdout == "1\n"


@pytest.mark.parametrize("without", [(), ("namespaces",)])
def test_descriptors_above_1023_are_no_hindrance(without: tuple[str, ...]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1300:
        pytest.skip(f"this user may open {hard} files: raise `ulimit -Hn` to 1300")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1300), hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        with Executor([], 1, flavours=("thin",), without=without) as executor:
            before = len(os.listdir("/proc/self/fd"))
            for code, verdict in MIXED.items():
                result = executor.submit(Request(code, stdin=b"x", limits=QUICK, flavour="thin")).result(60)
                assert result.verdict is verdict, result
            _until(lambda: len(os.listdir("/proc/self/fd")) <= before, "descriptors were left open", 5)
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_folder_that_takes_long_to_remove_holds_up_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    removed = threading.Event()

    def slowly(folder: Path, remove: Callable[[Path], None] = workfolder.remove) -> None:
        removed.wait(20)
        remove(folder)

    monkeypatch.setattr(workfolder, "remove", slowly)
    with Executor([], 1, flavours=("thin",), without=("namespaces",)) as executor:
        for _ in range(2):
            assert executor.submit(Request("print(1)", limits=QUICK, flavour="thin")).result(10).stdout == "1\n"
        left = f"workbench-run-*-{os.getpid()}-*"
        assert len(list(Path(tempfile.gettempdir()).glob(left))) == 2
        removed.set()
    assert not any(Path(tempfile.gettempdir()).glob(left))


def test_a_sandbox_that_cannot_start_again_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    with Executor([], 1, flavours=("thin",)) as executor:
        monkeypatch.setattr("workbench.sandbox.outer.command", lambda *_: ["/bin/sh", "-c", "echo no room >&2"])
        os.kill(executor._zygotes["thin"].pid, signal.SIGKILL)
        _until(lambda: not executor._zygotes["thin"].alive, "the zygote lives")
        result = executor.submit(Request("print(1)", limits=QUICK, flavour="thin")).result(60)
        assert result.verdict is Verdict.INFRASTRUCTURE
        assert "(the zygote, from which every script is started) could not start, so no script" in str(result.reason)
        assert str(result.reason).endswith(
            "no room; run `workbench doctor`, which tries the sandbox anew and says what is missing."
        )
        with pytest.raises(WorkbenchError, match="could not start"):
            executor.start()


def _marked(mark: str) -> list[int]:
    return [pid for pid in psutil.pids() if mark in _words(pid)[:1]]


def _words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return []


def _until(condition: Callable[[], bool], otherwise: str, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, otherwise
        time.sleep(0.02)


MIXED = {
    "print('fine')": Verdict.OK,
    "import os, time\nif os.fork() == 0:\n    os.setsid(); time.sleep(60)": Verdict.OK,
    "import ctypes; ctypes.string_at(0)": Verdict.RUNTIME_ERROR,
    "import os; os._exit(3)": Verdict.RUNTIME_ERROR,
    "import os; os.kill(os.getpid(), 9)": Verdict.RUNTIME_ERROR,
    "x = bytearray(10**10)": Verdict.MEMORY_LIMIT,
    "while True: print('x' * 9999)": Verdict.OUTPUT_LIMIT,
    "import os; os.symlink('/etc/passwd', 'submission.csv')": Verdict.OK,
    "import threading\nfor _ in range(9): threading.Thread(target=print).start()": Verdict.OK,
}


@pytest.mark.parametrize("count", [45, pytest.param(900, marks=pytest.mark.slow)])
def test_mixed_runs_leave_the_outside_as_it_was(count: int) -> None:
    with Executor([], workers=4, flavours=("thin",)) as executor:
        codes = [code for code, _ in zip(itertools.cycle(MIXED), range(count), strict=False)]

        def all_of_them() -> None:
            futures = [executor.submit(Request(code, limits=QUICK, flavour="thin")) for code in codes]
            found = [future.result(120).verdict for future in futures]
            assert found == [MIXED[code] for code in codes]

        all_of_them()  # fills caches and parks children
        before = _outside(executor)
        all_of_them()
        _until(lambda: _outside(executor) == before, f"{before} became {_outside(executor)}", 10)


def _outside(executor: Executor) -> dict[str, Any]:
    zygote = executor._zygotes["thin"].pid
    return {
        "processes": len(_processes()),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "descriptors of the zygote": len(os.listdir(f"/proc/{zygote}/fd")),
        "mounts": Path("/proc/self/mounts").read_text().count("\n"),
        "shared memory": sorted(os.listdir("/dev/shm")),
        "temporary": sorted(name for name in os.listdir(tempfile.gettempdir()) if name.startswith("workbench-")),
        "cores": list(ROOT.glob("core*")),
    }


def test_nothing_is_left_after_closing() -> None:
    before = _processes()
    executor = Executor([], workers=1, flavours=("thin",)).start()
    waiting = executor.submit(Request("import time; time.sleep(60)", limits=Limits(wall_s=60), flavour="thin"))
    time.sleep(0.3)
    executor.close()
    executor.close()
    with pytest.raises((CancelledError, WorkbenchError)):
        waiting.result(5)
    time.sleep(0.5)
    assert _processes() <= before
    with pytest.raises(WorkbenchError, match="closed"):
        executor.submit(Request("print(1)"))


def _processes() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Limits(cpu_s=0), "limit cpu_s=0 is not accepted"),
        (lambda: Limits(memory_mb=-5), "limit memory_mb=-5 is not accepted"),
        (lambda: Limits(wall_s=float("nan")), "limit wall_s=nan is not accepted"),
        (lambda: Executor(workers=0), "workers=0"),
        (lambda: isolation.probe(["magic"]), "'magic' is no means of isolation"),
        (lambda: isolation.require("F", unsafe=False), "min_level='F' is not accepted"),
    ],
)
def test_mistakes_are_one_sentence(make, sentence: str) -> None:
    with pytest.raises(WorkbenchError) as refused:
        make()
    assert sentence in str(refused.value)


def test_only_public_folders_below_the_roots_are_shown(executor: Executor, tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("x\n")
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(WorkbenchError, match="public_dir"):
            executor.submit(Request("print(1)", public_dir=folder))
    with pytest.raises(WorkbenchError, match="collect"):
        executor.submit(Request("print(1)", collect="../x"))
