"""Every attack of the catalogue, alone and many times: its verdict, and that nobody else noticed."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
from catalogue import PUBLIC, Attack, Bait, bait, catalogue, outside, patience

from workbench.config import ROOT
from workbench.sandbox import isolation
from workbench.sandbox.executor import Executor, Limits, Request, Result
from workbench.types import Verdict

ATTACKS = catalogue()
INNOCENT = (
    "import decimal, json, os, random, sys, tempfile\n"
    "print([sorted(os.listdir(one)) for one in ('.', tempfile.gettempdir(), '/dev/shm')], os.getcwd())\n"
    "print(random.random(), sum(n * n for n in range(100_000)), sorted(os.environ))\n"
    "if 'pandas' in sys.modules:\n"
    "    import numpy, pandas, sklearn.metrics\n"
    "    print(pandas.read_csv('input/train.csv').shape, numpy.random.rand(), numpy.sum([1, 2]))\n"
    "    print(sklearn.metrics.mean_squared_error([1], [2]), sys.modules['json'].dumps(1))\n"
)


@pytest.fixture(scope="session")
def target() -> Iterator[Bait]:
    with bait() as offered:
        yield offered


@pytest.fixture(scope="session")
def alone(executor: Executor, target: Bait) -> dict[str, tuple[Result, int]]:
    """By flavour: the innocent run with nobody beside it, and the private bytes of its zygote."""
    found = {}
    for flavour in ("thin", "full"):
        runs = [_innocent(executor, flavour) for _ in range(4)]  # the first ones boot and fill caches
        zygote = next(one for seat, one in executor._zygotes.items() if seat[0] == flavour)
        found[flavour] = max(runs[1:], key=lambda run: run.cpu_s), zygote.resident()
    return found


def _innocent(executor: Executor, flavour: str) -> Result:
    request = Request(INNOCENT, PUBLIC, limits=Limits(5, 30, 256), seed=3, flavour=flavour)  # type: ignore[arg-type]
    return executor.submit(request).result(60)


@pytest.mark.parametrize("attack", ATTACKS, ids=[attack.name for attack in ATTACKS])
def test_attack(executor: Executor, target: Bait, alone: dict[str, tuple[Result, int]], attack: Attack) -> None:
    if attack.head.get("machine", platform.machine()) != platform.machine():
        pytest.skip(f"its numbers of system calls are those of {attack.head['machine']}: write them for this one")
    if executor.level not in "BC":
        pytest.skip("where runs share the file system these programs are a danger to it: see `workbench doctor`")
    expected, resident = alone[attack.flavour]
    before = _settled(executor)
    began, busy = time.monotonic(), _supervising(executor)
    run, ended = executor.submit(attack.request(target)), list[float]()
    run.add_done_callback(lambda _: ended.append(time.monotonic()))
    beside = _beside(executor, attack.flavour, run)
    result = run.result(60)
    took, busy = time.monotonic() - began, _supervising(executor) - busy
    after = _innocent(executor, attack.flavour)
    assert attack.faults(result, target.secrets) == []
    assert len(ended) == 1
    late = ended[0] - began - result.wall_s  # its start, and the end of all processes
    assert late < patience(8), "the verdict came late"
    assert busy < 0.35 * took + 0.3, "watching it takes the thread that watches all"
    for other in (*beside, after):
        assert (other.verdict, other.stdout) == (Verdict.OK, expected.stdout)
        assert other.cpu_s < 2 * expected.cpu_s + 0.3
    assert target.faults() == []
    assert _settled(executor, before) == before
    for seat, zygote in executor._zygotes.items():
        if seat[0] == attack.flavour:
            assert zygote.resident() < 1.05 * resident + 2**21


def _supervising(executor: Executor) -> float:
    """CPU seconds of the thread that supervises."""
    assert executor._thread is not None
    words = Path(f"/proc/self/task/{executor._thread.native_id}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, words[11:13])) / os.sysconf("SC_CLK_TCK")


def _beside(executor: Executor, flavour: str, run: Future[Result]) -> list[Result]:
    """Some innocent runs while the attack goes on."""
    found = []
    for _ in range(3):
        found.append(_innocent(executor, flavour))
        until = time.monotonic() + 0.2
        while not run.done() and time.monotonic() < until:
            time.sleep(0.01)
        if run.done():
            break
    return found


def _settled(executor: Executor, wanted: dict[str, object] | None = None) -> dict[str, object]:
    """The outside once it is as `wanted`, or the same twice; as it is after some seconds."""
    began, last = time.monotonic(), outside(executor)
    while time.monotonic() - began < patience(10):
        time.sleep(0.01 if wanted else 0.03)
        now = outside(executor)
        if now == (wanted or last):
            return now
        last = now
    return last


def test_cheap_attacks_hold_without_bubblewrap(target: Bait) -> None:
    without = ("bubblewrap",)
    if (found := isolation.probe(without).level) != "C":
        pytest.skip(f"this machine gives {found} there: see `workbench doctor`")
    attacks = [attack for attack in ATTACKS if attack.cheap and attack.flavour == "thin"]
    with Executor([PUBLIC], workers=2, flavours=("thin",), without=without) as executor:
        futures = [executor.submit(attack.request(target)) for attack in attacks]
        results = zip(attacks, [future.result(60) for future in futures], strict=True)
        faults = {attack.name: found for attack, result in results if (found := attack.faults(result, target.secrets))}
    assert (faults, target.faults()) == ({}, [])


def test_every_attack_of_the_list_is_there_and_no_other() -> None:
    """Numbers of one list; `x` is a second one that grows: write a new one down here, so that its loss is noticed."""
    there = {attack.name[:3] for attack in ATTACKS}
    wanted = {f"{kind}{number:02}" for kind, numbers in NUMBERS.items() for number in numbers}
    assert there == wanted
    assert len(ATTACKS) == 126


NUMBERS = {
    "a": (1, 3, 4, 5, 6, 7, 8, 11, 12, 13, 14, 17, 18, 19, 23, 24, 26),
    "b": (27, 28, 32, 33, 34, 35, 37, 38, 39, 41, 43),
    "c": (46, 47, 48, 49, 51, 54, 55, 56, 58, 59, 61, 62, 64, 65, 68, 69),
    "d": (70, 76),
    "x": range(1, 64),
}


# Fewer to try it: some eleven runs a second on two busy cores.
REPEATS = int(os.environ.get("ATTACK_REPEATS", "200"))


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("user", "flavour", "count"),
    [("ours", "thin", REPEATS), ("ordinary", "thin", REPEATS), ("ours", "full", REPEATS // 10)],
    ids=["thin", "thin, ordinary user", "full"],
)
def test_cheap_attacks_again_and_again(tmp_path: Path, user: str, flavour: str, count: int) -> None:
    words = [sys.executable, str(Path(__file__).parent / "repeat.py"), flavour, str(count)]
    environment = dict(os.environ, PYTHONPATH=str(ROOT), PYTHONDONTWRITEBYTECODE="1")
    with tempfile.TemporaryDirectory() as home:
        if user == "ordinary" and os.getuid() == 0:
            Path(home).chmod(0o755)
            (Path(home) / ".bashrc").write_text("export TOKEN=token-of-an-ordinary-user\n")
            environment |= {"HOME": home}
            words = _as_nobody(words, tmp_path)
        done = subprocess.run(words, env=environment, cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    print({name: found[name] for name in ("level", "runs", "seconds")})
    assert (found["root"], found["faults"]) == (user == "ours" and os.getuid() == 0, {})
    assert found["runs"] > 50 * count


def _as_nobody(words: list[str], stage: Path) -> list[str]:
    """The command as an ordinary user, who sees the interpreter and the repository wherever they lie.

    Where a folder above is closed to others (root's home), a mount namespace of its own shows it with these alone.
    """
    if not (shutil.which("setpriv") and shutil.which("unshare")):
        pytest.skip("setpriv or unshare is missing: install util-linux")
    shown = [
        path for path in {str(ROOT), sys.prefix, os.path.realpath(sys.base_prefix), sys.base_prefix} if path != "/"
    ]
    script = ["set -e"]
    closed = {path: top for path in shown if (top := _closed(path))}
    for number, path in enumerate(closed):
        place = stage / str(number)
        place.mkdir()
        script.append(f"mount --bind '{path}' '{place}'")
    script += [f"mount -t tmpfs -o mode=755 none '{top}'" for top in sorted(set(closed.values()))]
    for number, path in enumerate(closed):
        script.append(f"mkdir -p '{path}'; mount --bind '{stage / str(number)}' '{path}'")
    script.append('exec setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all "$@"')
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", "\n".join(script), "sh", *words]


def _closed(path: str) -> str | None:
    """The first folder above `path`, or `path` itself, that others may not enter."""
    above = [*list(Path(path).parents)[::-1], Path(path)]
    return next((str(folder) for folder in above if folder.stat().st_mode & 0o005 != 0o005), None)
