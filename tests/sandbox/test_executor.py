"""The executor as its callers see it: many at once, cancelling, a zygote that dies, closing, levels."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from concurrent.futures import CancelledError
from pathlib import Path

import psutil
import pytest

from workbench.sandbox import isolation
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


def test_runs_survive_the_death_of_their_zygote() -> None:
    others = _zygotes()
    with Executor([], workers=2, flavours=("thin",)) as executor:
        code = "import time; time.sleep(1.0); print('through')"
        futures = [executor.submit(Request(code, limits=QUICK, flavour="thin")) for _ in range(2)]
        time.sleep(0.5)
        mine = _zygotes() - others
        assert mine
        for pid in mine:
            with contextlib.suppress(ProcessLookupError):  # one went with another
                os.kill(pid, signal.SIGKILL)
        results = [future.result(60) for future in futures]
        assert {result.verdict for result in results} <= {Verdict.OK, Verdict.INFRASTRUCTURE}
        again = executor.submit(Request("print('on')", limits=QUICK, flavour="thin")).result(60)
        assert again.stdout == "on\n"


def _zygotes() -> set[int]:
    """Zygotes among the descendants of this process; the runs below them, which look alike, are left out."""
    parents = {}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if any(word.endswith("zygote.py") for word in process.cmdline()):
                parents[process.pid] = process.ppid()
    return {pid for pid, parent in parents.items() if parent not in parents}


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


def test_levels_are_found_by_trying() -> None:
    best = isolation.probe()
    assert best.level in "ABCDE"
    without = isolation.probe(["namespaces"])
    assert without.level >= "D"
    assert any("namespaces" in text for text in without.missing)
    nothing = isolation.probe(["namespaces", "landlock", "seccomp"])
    assert nothing.level == "E"
    with pytest.raises(WorkbenchError, match="isolation level E"):
        isolation.require("D", unsafe=False, without=["namespaces", "landlock", "seccomp"])
    if best.level > "A":
        with pytest.raises(WorkbenchError, match=f"Isolation level {best.level} is weaker than min_level=A"):
            isolation.require("A", unsafe=False)


@pytest.mark.parametrize("without", [("bubblewrap",), ("namespaces",)])
def test_weaker_machines_run_scripts_too(without: tuple[str, ...]) -> None:
    if isolation.probe(without).level == "E":
        pytest.skip("no Landlock and seccomp on this kernel: boot Linux 6.7 or newer with lsm=landlock")
    with Executor([], workers=1, flavours=("thin",), without=without) as executor:
        result = executor.submit(Request("print(40 + 2)", limits=QUICK, flavour="thin")).result(60)
        assert (result.verdict, result.stdout) == (Verdict.OK, "42\n"), result
        assert result.level in "CD"
        late = executor.submit(Request("while True: pass", limits=Limits(cpu_s=0.5, wall_s=2), flavour="thin"))
        assert late.result(60).verdict is Verdict.TIMEOUT
