"""The executor as its callers see it: many at once, waiting, cancelling, limits, files, zygotes that die or wear out."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import psutil
import pytest

from workbench.sandbox import isolation, workfolder
from workbench.sandbox.executor import Executor, Limits, Request
from workbench.sandbox.places import Places
from workbench.sandbox.zygotes import Zygote
from workbench.types import Verdict, WorkbenchError

QUICK = Limits(cpu_s=2.0, wall_s=5.0, memory_mb=256)
SEAT = ("thin", 0)


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
        _kill_serving(executor, 2, deaths)
        results = [future.result(60) for future in futures]
        assert [(result.verdict, result.stdout) for result in results] == [(verdict, stdout)] * 2, results
        again = executor.submit(Request("print('on')", limits=QUICK, flavour="thin")).result(60)
        assert again.stdout == "on\n"


def _kill_serving(executor: Executor, runs: int, deaths: int = 1) -> None:
    """SIGKILL the zygote that serves so many runs, once it does; then the next one that takes them over."""
    killed: list[Zygote] = []

    def look() -> list[Zygote]:
        return [zygote for zygote in executor._zygotes.values() if zygote.active == runs and zygote not in killed]

    for _ in range(deaths):
        _until(lambda: bool(look()), "the scripts did not start")
        killed += look()[:1]
        os.kill(killed[-1].pid, signal.SIGKILL)


def test_zygotes_share_the_load() -> None:
    with Executor([], workers=4, zygotes=2, flavours=("thin",)) as executor:
        assert set(executor._zygotes) == {("thin", 0), ("thin", 1)}
        assert executor.describe()["boot_s"]["thin"] == round(max(z.boot_s for z in executor._zygotes.values()), 2)
        futures = [executor.submit(Request("input()", limits=QUICK, flavour="thin")) for _ in range(3)]
        slow = [executor.submit(Request("import time; time.sleep(1)", limits=QUICK, flavour="thin")) for _ in range(4)]
        assert [future.result(30).verdict for future in futures] == [Verdict.RUNTIME_ERROR] * 3
        _until(lambda: [z.active for z in executor._zygotes.values()] == [2, 2], "they did not share")
        assert {future.result(30).verdict for future in slow} == {Verdict.OK}
        assert {zygote.runs > 0 for zygote in executor._zygotes.values()} == {True}


def test_there_is_one_zygote_for_every_four_workers() -> None:
    assert [Executor([], workers)._count for workers in (1, 4, 7, 8, 64)] == [1, 1, 1, 2, 16]
    with pytest.raises(WorkbenchError, match="zygotes=0 is not accepted"):
        Executor([], zygotes=0)


def test_the_other_zygote_takes_over_and_the_dead_one_comes_back() -> None:
    with Executor([], workers=2, zygotes=2, flavours=("thin",)) as executor:
        code = "import time; time.sleep(0.7); print('through')"
        waiting = executor.submit(Request(code, limits=QUICK, flavour="thin"))
        before = set(executor._zygotes.values())
        _kill_serving(executor, 1)
        result = waiting.result(30)
        assert (result.verdict, result.stdout) == (Verdict.OK, "through\n"), result
        _until(lambda: all(zygote.alive for zygote in executor._zygotes.values()), "it did not come back")
        assert len(executor._zygotes) == 2
        assert len(before & set(executor._zygotes.values())) == 1
        _until(lambda: not executor._retiring, "the dead one is still kept")

        waiting = executor.submit(Request(code, limits=QUICK, flavour="thin"))
        _kill_serving(executor, 1, 2)
        result = waiting.result(30)
        assert result.verdict is Verdict.INFRASTRUCTURE
        assert (
            result.reason == "The sandbox's own process (the zygote, from which scripts are started) ended meanwhile."
        )
        assert executor.submit(Request("print('on')", limits=QUICK, flavour="thin")).result(30).stdout == "on\n"


def test_while_another_serves_a_zygote_that_cannot_start_is_not_tried_each_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Executor([], workers=1, zygotes=2, flavours=("thin",)) as executor:
        monkeypatch.setattr("workbench.sandbox.outer.command", lambda *_: ["/bin/sh", "-c", "echo no room >&2"])
        dead = executor._zygotes[SEAT]
        os.kill(dead.pid, signal.SIGKILL)
        _until(lambda: not dead.alive, "the zygote lives")
        for _ in range(5):
            assert executor.submit(Request("print(1)", limits=QUICK, flavour="thin")).result(30).stdout == "1\n"
            _until(lambda: not executor._booting, "it is still trying")
        assert [record.getMessage().endswith("is missing.") for record in caplog.records] == [True]
        monkeypatch.undo()
        monkeypatch.setattr("workbench.sandbox.executor.REST_S", 0)
        assert executor.submit(Request("print(1)", limits=QUICK, flavour="thin")).result(30).stdout == "1\n"
        _until(lambda: executor._zygotes[SEAT].alive, "it was not tried again")


def test_a_folder_made_later_is_shown_by_a_new_zygote(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with Executor([tmp_path], workers=2, zygotes=2, flavours=("thin",)) as executor:
        public = tmp_path / "task" / "public"
        public.mkdir(parents=True)
        (public / "x").write_text("shown")
        asked = Request("print(open('input/x').read())", public, limits=QUICK, flavour="thin")
        assert executor.submit(asked).result(30).stdout == "shown\n"
        _until(lambda: all(public in z.public for z in executor._zygotes.values()), "one does not show it")
        assert [executor.submit(asked).result(30).stdout for _ in range(3)] == ["shown\n"] * 3


def test_a_grown_zygote_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    with Executor([], workers=1, flavours=("thin",)) as executor:
        first = executor._zygotes[SEAT]
        monkeypatch.setattr(Zygote, "resident", lambda self: 2 * self.inherited + 2**24 if self is first else 0)
        assert executor.submit(Request("print(1)", limits=QUICK, flavour="thin")).result(30).stdout == "1\n"
        _until(lambda: executor._zygotes[SEAT] is not first and not executor._retiring, "it was not replaced")
        assert not first.alive
        assert executor.submit(Request("print(1)", limits=QUICK, flavour="thin")).result(30).stdout == "1\n"


LIMITS: dict[str, tuple[str, float, float, Verdict]] = {
    "cpu_s": ("import time\nwhile time.process_time() < 0.7: pass", 0.3, 3, Verdict.TIMEOUT),
    "wall_s": ("import time; time.sleep(0.7)", 0.3, 5, Verdict.TIMEOUT),
    "memory_mb": ("x = bytearray(10**8)", 50, 200, Verdict.MEMORY_LIMIT),
    "processes": (
        "import threading, time\nfor _ in range(12): threading.Thread(target=time.sleep, args=(0.2,)).start()",
        4,
        1000,  # at level D those of other executors count too
        Verdict.RUNTIME_ERROR,
    ),
    "output_kb": ("print('x' * 20_000)", 10, 30, Verdict.OUTPUT_LIMIT),
    "files_mb": ("open('x', 'wb').write(bytes(3 * 2**20))", 2, 5, Verdict.RUNTIME_ERROR),
    "threads": ("import os; assert os.environ['OMP_NUM_THREADS'] == '3'", 1, 3, Verdict.RUNTIME_ERROR),
}


@pytest.mark.parametrize("without", [(), ("namespaces",)])
def test_every_limit_is_that_of_the_run(without: tuple[str, ...]) -> None:
    assert set(LIMITS) == set(Limits.__slots__)
    with Executor([], 2, flavours=("thin",), without=without) as executor:
        for name, (code, least, enough, verdict) in LIMITS.items():
            plain: dict[str, Any] = {"cpu_s": 3, "wall_s": 5, "memory_mb": 256}
            waiting = [
                executor.submit(Request(code, limits=Limits(**{**plain, name: value}), flavour="thin"))
                for value in (least, enough)
            ]
            found = [future.result(30) for future in waiting]
            assert [result.verdict for result in found] == [verdict, Verdict.OK], (name, found)


@pytest.mark.parametrize("without", [(), ("namespaces",)])
def test_scripts_give_way_to_who_runs_them(without: tuple[str, ...]) -> None:
    code = "import os, time; print(os.nice(0)); time.sleep(0.7)\ntry: os.nice(-1)\nexcept OSError as e: print(e.errno)"
    with Executor([], workers=1, flavours=("thin",), without=without) as executor:
        future = executor.submit(Request(code, limits=QUICK, flavour="thin"))
        autogroups = Path("/proc/self/autogroup")
        if autogroups.exists() and autogroups.read_text().strip():
            _until(lambda: any(" nice 10" in text for text in _autogroups()), "no session was lowered")
        assert future.result(30).stdout.split() == [str(min(19, os.nice(0) + 10)), "1"], "EPERM"


def _autogroups() -> list[str]:
    """How the kernel weighs the session of each process below us."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(OSError):
            found.append(Path(f"/proc/{process.pid}/autogroup").read_text())
    return found


def test_worn_zygotes_are_replaced_without_losing_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.sandbox.executor.RECYCLE_RUNS", 100)
    with Executor([], workers=2, flavours=("thin",)) as executor:
        first = executor._zygotes[SEAT].pid
        futures = [executor.submit(Request(f"print({n})", limits=QUICK, flavour="thin")) for n in range(160)]
        assert [future.result(60).stdout for future in futures] == [f"{n}\n" for n in range(160)]
        until = time.monotonic() + 10
        while executor._retiring or executor._booting:
            assert time.monotonic() < until
            time.sleep(0.02)
        assert executor._zygotes[SEAT].pid != first
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


def test_a_waiting_request_can_be_cancelled() -> None:
    with Executor([], workers=1, flavours=("thin",)) as executor:
        slow = executor.submit(Request("import time; time.sleep(0.5)", limits=QUICK, flavour="thin"))
        waiting = executor.submit(Request("while True: pass", limits=Limits(cpu_s=30), flavour="thin"))
        last = executor.submit(Request("print('last')", limits=QUICK, flavour="thin"))
        assert waiting.cancel()
        assert slow.result(30).verdict is Verdict.OK
        assert last.result(5).stdout == "last\n"


def test_who_gives_up_waiting_for_a_place_holds_none() -> None:
    """More wait than there are threads for waiting; half of them give up; then all places are free again."""

    async def crowd(executor: Executor) -> list[str]:
        slow = asyncio.create_task(executor.run(Request("import time; time.sleep(0.6)", limits=QUICK, flavour="thin")))
        await asyncio.sleep(0.1)
        asked = [Request(f"print({n})", limits=QUICK, flavour="thin") for n in range(80)]
        waiting = [asyncio.create_task(executor.run(request)) for request in asked]
        await asyncio.sleep(0.1)
        for task in waiting[::2]:
            task.cancel()
        await slow
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in found[::2])
        return [result.stdout for result in found[1::2]]  # type: ignore[union-attr]

    with Executor([], workers=1, flavours=("thin",), queue=1) as executor:
        assert asyncio.run(crowd(executor)) == [f"{n}\n" for n in range(1, 80, 2)]
        _until(lambda: executor._places._free == 1, "a place was lost", 2)
        assert executor.submit(Request("print(1)", limits=QUICK, flavour="thin")).result(5).stdout == "1\n"


def test_a_place_that_comes_while_one_gives_up_is_not_lost() -> None:
    places = Places(1)
    with places.waiting() as first:
        first.result(1)

    def give_up() -> None:
        with places.waiting() as second:
            assert not second.done()
            places.give()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        give_up()
    with places.waiting() as third:
        third.result(1)


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
            for code, verdict in (("print(input())", Verdict.OK), ("import os; os._exit(3)", Verdict.RUNTIME_ERROR)):
                asked = Request(code, stdin=b"x", files={"a": b"a"}, limits=QUICK, flavour="thin")
                assert executor.submit(asked).result(60).verdict is verdict
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

    def folders() -> set[Path]:
        mine = f"workbench-run-*-{os.getpid()}-*"
        return set(Path(tempfile.gettempdir()).glob(f"{mine}/{mine}"))

    others = folders()
    monkeypatch.setattr(workfolder, "remove", slowly)
    with Executor([], 1, flavours=("thin",), without=("namespaces",)) as executor:
        for _ in range(2):
            assert executor.submit(Request("print(1)", limits=QUICK, flavour="thin")).result(10).stdout == "1\n"
        assert len(folders() - others) == 2
        removed.set()
    assert not folders() - others


def test_a_sandbox_that_cannot_start_again_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    with Executor([], 1, flavours=("thin",)) as executor:
        monkeypatch.setattr("workbench.sandbox.outer.command", lambda *_: ["/bin/sh", "-c", "echo no room >&2"])
        os.kill(executor._zygotes[SEAT].pid, signal.SIGKILL)
        _until(lambda: not executor._zygotes[SEAT].alive, "the zygote lives")
        result = executor.submit(Request("print(1)", limits=QUICK, flavour="thin")).result(60)
        assert result.verdict is Verdict.INFRASTRUCTURE
        assert "(the zygote, from which every script is started) could not start, so no script" in str(result.reason)
        assert str(result.reason).endswith(
            "no room; run `workbench doctor`, which tries the sandbox anew and says what is missing."
        )
        with pytest.raises(WorkbenchError, match="could not start"):
            executor.start()


def _until(condition: Callable[[], bool], otherwise: str, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, otherwise
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Limits(cpu_s=0), "limit cpu_s=0 is not accepted"),
        (
            lambda: Limits(memory_mb=-5),
            "limit memory_mb=-5 is not accepted: expected a whole number above 0, and at most",
        ),
        (lambda: Limits(wall_s=float("nan")), "limit wall_s=nan is not accepted"),
        (lambda: Limits(cpu_s=1e10), "expected a number of seconds above 0, and at most 1,000,000,000; give cpu_s one"),
        (
            lambda: Limits(wall_s=float("inf")),
            "limit wall_s=inf is not accepted: expected a number of seconds above 0, and at most",
        ),
        (lambda: Executor(workers=0), "workers=0"),
        (lambda: Executor(workers="4"), "workers='4' is not accepted: expected a whole number of at least 1."),
        (lambda: Executor("/tmp"), "data_roots='/tmp' is not accepted: expected a list of folders; give ['/tmp']."),
        (lambda: Executor(Path("/tmp")), "data_roots='/tmp' is not accepted"),
        (lambda: Executor(["/nope"]), "data_roots: '/nope' is no folder"),
        (lambda: Executor(flavours=("fulll",)), "flavours=('fulll',) is not accepted: expected a list of some of full"),
        (lambda: Executor(flavours="thin"), "flavours='thin' is not accepted: expected a list"),
        (lambda: Executor(without="seccomp"), "without='seccomp' is not accepted: expected a list"),
        (lambda: Request("", flavour="medium"), "flavour='medium' is not accepted: expected full or thin."),
        (lambda: Request("", collect=".."), "collect='..' is not accepted: expected a file name"),
        (lambda: Request("", collect=Path("x")), "collect=PosixPath('x') is not accepted: expected a file name"),
        (lambda: Request("", collect_bytes=0), "collect_bytes=0 is not accepted: expected at least 1."),
        (lambda: Request("", collect_bytes="9"), "collect_bytes='9' is not accepted: expected a whole number"),
        (lambda: Request(None), "code=None is not accepted: expected the text or bytes of a script."),
        (lambda: Request("", public_dir=3), "public_dir=3 is not accepted: expected a folder."),
        (lambda: Request("", stdin="abc"), "stdin='abc' is not accepted: expected bytes"),
        (lambda: Request("", files=["a"]), "files=['a'] is not accepted: expected bytes by file name"),
        (lambda: Request("", files={"a": "x"}), "files['a']='x' is not accepted: expected bytes"),
        (lambda: Request("", files={3: b"x"}), "name of a file=3 is not accepted: expected text."),
        (lambda: Request("", limits=None), "limits=None is not accepted: expected `Limits(...)`."),
        (lambda: Request("", seed="a"), "seed='a' is not accepted: expected a whole number."),
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
