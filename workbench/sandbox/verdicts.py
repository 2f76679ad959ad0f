"""From what was observed of a run to its one verdict."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import dataclass
from typing import Literal

from workbench.sandbox.records import Limits, Result
from workbench.sandbox.streams import Capped
from workbench.types import Verdict

Stop = Literal["wall", "cpu", "memory", "output", "disk", "cancelled", "unwatched"]

NOT_SET_UP = "The sandbox could not be set up"
"""How the reason begins where this machine refused a step of setting a run up, rather than being slow."""

_NO_MEMORY = re.compile(r"(\w+\.)*_?(Array)?MemoryError\b|OSError: \[Errno 12\]")
_REFUSED = re.compile(r"PermissionError|Operation not permitted|Permission denied|Read-only file system")


@dataclass(slots=True)
class Observed:
    """All that the supervisor saw of one run."""

    stdout: Capped
    stderr: Capped
    stopped: Stop | None = None
    """Why we killed it; unwatched: it ended the process that watches over it."""
    status: int | None = None
    """Wait status of the script, reported by its init."""
    lost: str | None = None
    """Why there is no such report although we did not kill it."""
    cpu_s: float = 0.0
    wall_s: float = 0.0
    peak_mb: float = 0.0
    submission: bytes | None = None
    reason: str | None = None


def judge(seen: Observed, limits: Limits, level: str) -> Result:
    """Exactly one verdict, in this order: ours to blame, stopped by us, over a limit, failed, ok."""
    code = signum = None
    if seen.status is not None:
        ended = os.waitstatus_to_exitcode(seen.status)
        code, signum = (ended, None) if ended >= 0 else (None, -ended)
    elif seen.stopped:
        signum = int(signal.SIGKILL)
    stderr = seen.stderr.kept()
    last = last_line(stderr.decode("utf-8", "replace"))
    verdict, reason = _verdict(seen, limits, code, signum, last)
    return Result(
        verdict=verdict,
        exit_code=code,
        signal=signum,
        cpu_s=round(seen.cpu_s, 4),
        wall_s=round(seen.wall_s, 4),
        peak_mb=round(seen.peak_mb, 1),
        stdout_bytes=seen.stdout.kept(),
        stderr_bytes=stderr,
        truncated=seen.stdout.truncated or seen.stderr.truncated,
        level=level,
        submission=seen.submission,
        refused=verdict is Verdict.RUNTIME_ERROR and bool(_REFUSED.search(last)),
        reason=reason or seen.reason,
    )


def _verdict(
    seen: Observed, limits: Limits, code: int | None, signum: int | None, last: str
) -> tuple[Verdict, str | None]:
    if seen.lost is not None:
        return Verdict.INFRASTRUCTURE, seen.lost
    if seen.stopped == "wall":
        return Verdict.TIMEOUT, f"Stopped after {limits.wall_s:g} s of wall time."
    if seen.stopped == "cpu" or seen.cpu_s > limits.cpu_s or signum == signal.SIGXCPU:
        return Verdict.TIMEOUT, f"Stopped after {limits.cpu_s:g} s of CPU time."
    if seen.stopped == "unwatched":
        return Verdict.RUNTIME_ERROR, "Killed: the process that watches over the script was ended, by it or by another."
    if seen.stopped == "memory":
        return Verdict.MEMORY_LIMIT, f"Stopped above {limits.memory_mb} MB of memory."
    if seen.stopped == "disk":
        return Verdict.RUNTIME_ERROR, f"Stopped above {2 * limits.files_mb} MB of files, or with too many."
    if seen.stopped == "output" or seen.stdout.truncated:
        return Verdict.OUTPUT_LIMIT, f"Stopped above {limits.output_kb} KB of output."
    if code == 1 and _NO_MEMORY.match(last):
        return Verdict.MEMORY_LIMIT, f"Refused more than {limits.memory_mb} MB of memory: {last}"
    if code and not last and seen.peak_mb > 0.9 * limits.memory_mb:  # it caught the MemoryError and gave up
        return Verdict.MEMORY_LIMIT, f"Ended with exit code {code} near {limits.memory_mb} MB of memory."
    if signum == signal.SIGKILL and seen.peak_mb > 0.9 * limits.memory_mb:
        return Verdict.MEMORY_LIMIT, f"Killed near {limits.memory_mb} MB of memory."
    if signum is not None:
        return Verdict.RUNTIME_ERROR, f"Ended by signal {signum} ({_signal_name(signum)})."
    if code != 0:
        return Verdict.RUNTIME_ERROR, last or f"Ended with exit code {code}."
    return Verdict.OK, None


def last_line(text: str) -> str:
    """The last line that is not empty, at most 500 characters of it."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")[:500]


def _signal_name(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:
        return "unknown"
