"""`workbench exec PROGRAM.py`: one program in the sandbox."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from workbench.config import make_config
from workbench.types import Verdict, WorkbenchError


def execute(program: Path, stdin: Path | None, settings: dict[str, Any]) -> dict[str, Any]:
    """Run a program once: the fields of its result. `settings`: cpu_s, wall_s, memory_mb, unsafe_executor.

    Raises WorkbenchError for a program that cannot be read, a limit out of range, or a sandbox that is too weak.
    """
    from workbench.sandbox.executor import Executor, Limits, Request

    config = make_config(settings)
    code = _read(program)
    given = _read(stdin) if stdin else b""
    limits = Limits(cpu_s=config.cpu_s, wall_s=config.wall_s, memory_mb=config.memory_mb)
    with Executor([], 1, min_level=config.min_level, unsafe=config.unsafe_executor) as executor:
        result = executor.submit(Request(code, stdin=given, limits=limits, collect=None)).result()
    return {
        "verdict": result.verdict.value,
        "exit_code": result.exit_code,
        "signal": result.signal,
        "cpu_s": round(result.cpu_s, 4),
        "wall_s": round(result.wall_s, 4),
        "peak_mb": round(result.peak_mb, 1),
        "stdout": result.stdout,
        "stderr": result.stderr,
        "truncated": result.truncated,
        "level": result.level,
        "reason": result.reason,
    }


def _read(path: Path) -> bytes:
    if path.is_dir():
        raise WorkbenchError(f"'{path}' is a folder: expected a file.")
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise WorkbenchError(f"'{path}' does not exist: expected a file.") from None


def show(result: dict[str, Any]) -> None:
    """The program's own streams, and on stderr one line about it, with the reason when there is one."""
    sys.stdout.write(result["stdout"])
    sys.stdout.flush()
    sys.stderr.write(result["stderr"])
    spent = f"{result['cpu_s']:.2f} s CPU, {result['wall_s']:.2f} s, {result['peak_mb']:.0f} MB"
    if result["stderr"] and not result["stderr"].endswith("\n"):
        sys.stderr.write("\n")
    print(f"[{result['verdict']}, {spent}, isolation level {result['level']}]", file=sys.stderr)
    if result["reason"]:
        print(result["reason"], file=sys.stderr)


def status(result: dict[str, Any]) -> int:
    """0 only for a program that ended well."""
    return 0 if result["verdict"] == Verdict.OK.value else 1
