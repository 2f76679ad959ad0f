"""Thousands of mixed runs, one in ten hostile: no wrong verdict among the innocent, and the outside stays as it was."""

from __future__ import annotations

import os
import tempfile
import time
from collections import deque
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import psutil
import pytest

from workbench.config import ROOT
from workbench.sandbox import usage
from workbench.sandbox.executor import Executor, Limits, Request, Result
from workbench.types import Verdict

INNOCENT = {
    "prints": "print({n} * 7)",
    "reads": "print(sum(map(int, open(0))) * 7 // 3)",
    "submits": "open('submission.csv', 'w').write('{n}'); print({n} * 7)",
    "imports": "import json, re, decimal; print(json.loads('{n}') * 7)",
    "starts": "import subprocess; print(subprocess.run(['/bin/echo', '{n}'], capture_output=True, text=True).stdout.strip() and {n} * 7)",
    "threads": "from concurrent.futures import ThreadPoolExecutor as T\nwith T(3) as pool: print(sum(pool.map(int, [{n}] * 7)))",
    "uses a file": "print(int(open('given').read()) * 7)",
    "computes": "import numpy as np; print(int(np.full(7, {n}).sum()))",
}
"""Each prints 7 times its own number."""
HOSTILE = {
    "daemon": ("import os, time\nif os.fork() == 0:\n    os.setsid(); time.sleep(60)", {Verdict.OK}),
    "crash": ("import ctypes; ctypes.string_at(0)", {Verdict.RUNTIME_ERROR}),
    "suicide": ("import os; os.kill(os.getpid(), 9)", {Verdict.RUNTIME_ERROR}),
    "memory": ("x = []\nwhile True: x.append(bytearray(10**7))", {Verdict.MEMORY_LIMIT}),
    "output": ("while True: print('x' * 9999)", {Verdict.OUTPUT_LIMIT}),
    "link": ("import os; os.symlink('/etc/passwd', 'submission.csv')", {Verdict.OK}),
    "forks": ("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", {Verdict.TIMEOUT}),
    "files": ("n = 0\nwhile True:\n    open(f'f{n}', 'w').close(); n += 1", {Verdict.TIMEOUT, Verdict.RUNTIME_ERROR}),
    "signals": (
        "import os\nfor pid in (-1, 1, os.getppid()):\n    try: os.kill(pid, 9)\n    except OSError: pass",
        set(Verdict),
    ),
    "late": ("import time; time.sleep(60)", {Verdict.TIMEOUT}),
}
HARD = Limits(cpu_s=0.3, wall_s=0.8, memory_mb=128)
SOFT = Limits(cpu_s=5.0, wall_s=30.0, memory_mb=256)
IN_FLIGHT = 4
WAITING = 40
"""Asked for and not yet looked at: results that are kept would count as growth."""


def _request(number: int, flavour: Any) -> tuple[Request, set[Verdict], str | None, bytes | None]:
    """A request and what may come of it: the verdicts, the output (None: any), the submission. One in ten is hostile."""
    if number % 10 == 9:
        code, verdicts = list(HOSTILE.values())[number // 10 % len(HOSTILE)]
        limits = HARD if Verdict.TIMEOUT in verdicts else SOFT  # on a busy machine time would come before the others
        return Request(code, limits=limits, flavour=flavour), verdicts - {Verdict.INFRASTRUCTURE}, None, None
    kinds = [name for name in INNOCENT if flavour == "full" or name != "computes"]
    kind = kinds[number % len(kinds)]
    text = f"{number}".encode()
    request = Request(
        INNOCENT[kind].replace("{n}", f"{number}"),
        stdin=(text + b"\n") * 3,
        files={"given": text},
        limits=SOFT,
        flavour=flavour,
    )
    return request, {Verdict.OK}, f"{number * 7}\n", text if kind == "submits" else None


def _is_right(result: Result, verdicts: set[Verdict], stdout: str | None, submission: bytes | None) -> bool:
    return result.verdict in verdicts and result.submission == submission and stdout in (None, result.stdout)


def _soak(executor: Executor, numbers: range, flavour: Any) -> float:
    """Run them, IN_FLIGHT at once; runs per second."""
    began, waiting, wrong = time.monotonic(), deque[tuple[int, Any, Future[Result]]](), dict[int, Result]()
    for number in [*numbers, *[None] * WAITING]:
        if number is not None:
            request, *expected = _request(number, flavour)
            waiting.append((number, expected, executor.submit(request)))
        if number is None or len(waiting) > WAITING:
            first, expected, future = waiting.popleft()
            if not _is_right(result := future.result(120), *expected):
                wrong[first] = result
    assert wrong == {}
    return len(numbers) / (time.monotonic() - began)


def _outside(executor: Executor) -> dict[str, Any]:
    """Counts that must not change; the zygotes' too."""
    zygotes = {seat: zygote.pid for seat, zygote in sorted(executor._zygotes.items())}
    return {
        "processes": sorted(process.name() for process in psutil.Process().children(recursive=True)),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "descriptors of the zygotes": {seat: len(os.listdir(f"/proc/{pid}/fd")) for seat, pid in zygotes.items()},
        "threads": psutil.Process().num_threads(),
        "mounts": [line for line in Path("/proc/self/mounts").read_text().splitlines() if "/pytest-" not in line],
        "mounts of the zygotes": {
            seat: Path(f"/proc/{pid}/mounts").read_text().count("\n") for seat, pid in zygotes.items()
        },
        "shared memory": _ours(Path("/dev/shm")),
        "temporary": _ours(Path(tempfile.gettempdir())),
        "cores": sorted(map(str, ROOT.glob("core*"))),
    }


def _ours(folder: Path) -> list[str]:
    """What lies there under our names, two levels deep, without what other processes have there."""
    found = [*folder.glob("workbench-*"), *folder.glob("workbench-*/*")]
    return sorted(str(path) for path in found if f"-{os.getpid()}-" in path.name)


def _memory(executor: Executor) -> dict[str, int]:
    """Private bytes of the supervisor and of each zygote."""
    pids = {"supervisor": os.getpid(), **{f"{seat}": zygote.pid for seat, zygote in executor._zygotes.items()}}
    return {name: usage.anonymous_bytes(pid)[0] for name, pid in pids.items()}


@pytest.mark.parametrize(
    ("flavour", "count"),
    [("thin", 200), ("full", 100)]
    + [
        pytest.param(flavour, 10_000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])
        for flavour in ("thin", "full")
    ],
)
def test_mixed_runs_leave_the_outside_as_it_was(flavour: Any, count: int, capsys) -> None:
    with Executor([], IN_FLIGHT, zygotes=2, flavours=(flavour,)) as executor:
        warm = max(60, count // 10)  # fills caches, parks children
        _soak(executor, range(warm), flavour)
        before, memory = _settled(executor), _memory(executor)
        rate = _soak(executor, range(warm, warm + count), flavour)
        after, grown = _settled(executor), _memory(executor)
        assert after == before
        assert {name: size for name, size in grown.items() if size > 1.05 * memory[name] + 2**19} == {}, memory
        with capsys.disabled():
            print(f"\n{count} runs at level {executor.level}, {flavour}: {rate:.0f} runs/s, {IN_FLIGHT} in flight")


def _settled(executor: Executor) -> dict[str, Any]:
    """What is outside once ended children are collected and those in advance are there."""
    last, end = {}, time.monotonic() + 15
    while time.monotonic() < end:
        for zygote in executor._zygotes.values():
            zygote.reap()
        time.sleep(0.3)
        now = _outside(executor)
        if now == last:
            break
        last = now
    return last


def test_requests_are_mixed_as_said() -> None:
    asked = [_request(number, "full") for number in range(1000)]
    assert sum(stdout is None for _, _, stdout, _ in asked) == 100
    assert len({request.code for request, _, stdout, _ in asked if stdout is None}) == len(HOSTILE)
    assert len({stdout for _, _, stdout, _ in asked}) == 901
