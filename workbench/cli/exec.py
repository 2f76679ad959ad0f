"""`workbench exec PROGRAM.py`: one program in the sandbox."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from workbench.config import make_config
from workbench.types import Verdict, WorkbenchError

# C0 and C1 controls but tab and newline, and all marks that change the reading direction
_ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True, slots=True)
class Printed:
    """The bytes of a stream; as JSON, or wherever a string is made of it, its text."""

    data: bytes

    def __str__(self) -> str:
        return self.data.decode("utf-8", "replace")


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
        "stdout": Printed(result.stdout_bytes),
        "stderr": Printed(result.stderr_bytes),
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
    _write(sys.stdout, result["stdout"].data)
    errors = result["stderr"].data
    _write(sys.stderr, errors + b"\n" if errors and not errors.endswith(b"\n") else errors)
    spent = f"{result['cpu_s']:.2f} s CPU, {result['wall_s']:.2f} s, {result['peak_mb']:.0f} MB"
    print(f"[{result['verdict']}, {spent}, isolation level {result['level']}]", file=sys.stderr, flush=True)
    if result["reason"]:
        _write(sys.stderr, f"{result['reason']}\n".encode("utf-8", "backslashreplace"))


def _write(stream: TextIO, data: bytes) -> None:
    """As they are, but to a terminal as text that cannot act on it."""
    if stream.isatty():
        data = readable(data).encode(stream.encoding, "backslashreplace")
    stream.buffer.write(data)
    stream.flush()


def readable(data: bytes) -> str:
    """Text of a program that nobody has read, for a terminal: what is no UTF-8 and what does something other than to
    show a character, such as to move the cursor, set the clipboard or turn the reading direction, as Python writes it.
    """
    text = data.decode("utf-8", "backslashreplace")
    return _ACTING.sub(lambda found: repr(found[0])[1:-1], text)


def status(result: dict[str, Any]) -> int:
    """0 only for a program that ended well."""
    return 0 if result["verdict"] == Verdict.OK.value else 1
