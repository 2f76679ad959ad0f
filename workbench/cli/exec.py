"""`workbench exec PROGRAM.py`: one program in the sandbox."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from workbench.sandbox.records import MOST
from workbench.sandbox.verdicts import last_line
from workbench.types import Verdict, WorkbenchError

if TYPE_CHECKING:
    from workbench.sandbox.executor import Limits, Result

# C0 and C1 controls but tab and newline, and all marks that change the reading direction
_ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True, slots=True)
class Printed:
    """The bytes of a stream; as JSON, or wherever a string is made of it, its text."""

    data: bytes

    def __str__(self) -> str:
        return self.data.decode("utf-8", "replace")


_AMOUNTS = {
    "cpu": "cpu_s",
    "wall": "wall_s",
    "memory": "memory_mb",
    "processes": "processes",
    "output": "output_kb",
    "disk": "files_mb",
}
"""Options, and the limits they are."""

_NO_NETWORK = re.compile("name resolution|Name or service not known|Network is unreachable")


def execute(
    program: Path,
    amounts: Mapping[str, float],
    *,
    stdin: Path | None = None,
    folder: Path | None = None,
    save: Path | None = None,
    thin: bool = False,
    min_level: str = "D",
    unsafe: bool = False,
) -> dict[str, Any]:
    """Run a program once: the fields of its result. `amounts`: by the option's name, of `_AMOUNTS`.

    stdin: a file, `-` for our own; None: our own where it is a pipe or a file. folder: what it sees as ./input. save:
    where its submission.csv goes. Raises WorkbenchError for a file that cannot be read, a limit out of range, or a
    sandbox that is too weak.
    """
    from workbench.sandbox.executor import Executor, Request

    limits = _limits(amounts)
    if folder is not None and not folder.is_dir():
        raise WorkbenchError(f"--input '{folder}' is no folder: give the folder that the program shall see as ./input.")
    if save is not None and (save.is_dir() or not save.absolute().parent.is_dir()):
        raise WorkbenchError(f"--save '{save}' cannot be written: give the name of a file in a folder that exists.")
    code = _read(program)
    given = _piped() if stdin is None else _own() if stdin == Path("-") else _read(stdin)
    request = Request(code, folder, given, limits=limits, flavour="thin" if thin else "full")
    roots = [] if folder is None else [folder]
    with Executor(roots, 1, min_level=min_level, unsafe=unsafe, flavours=(request.flavour,)) as executor:
        result = executor.submit(request).result()
    if save is not None and result.submission is not None:
        save.write_bytes(result.submission)
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
        "refused": result.refused,
        "hint": _hint(result),
        "submission_bytes": None if result.submission is None else len(result.submission),
        "save": None if save is None else str(save),
    }


def _limits(amounts: Mapping[str, float]) -> Limits:
    from workbench.sandbox.executor import Limits

    for option, amount in amounts.items():
        if not 0 < amount <= MOST:
            raise WorkbenchError(
                f"--{option} {amount} is not accepted: expected a number above 0, at most {MOST:.0f}; "
                f"give --{option} one."
            )
    return Limits(**{_AMOUNTS[option]: amount for option, amount in amounts.items()})  # type: ignore[arg-type]


def _hint(result: Result) -> str | None:
    """What the last error of a program does not say: that it was the sandbox."""
    last = result.reason or ""
    if result.verdict is Verdict.RUNTIME_ERROR and _NO_NETWORK.search(last):
        return "The sandbox has no network."
    if result.refused:
        return "The sandbox does not permit this: it has no network, and only the program's own folder can be written."
    return None


def _piped() -> bytes:
    """Our own stdin where somebody feeds it: not a terminal, /dev/null, or a closed one."""
    try:
        kind = os.fstat(0).st_mode
    except OSError:
        return b""
    return b"" if stat.S_ISCHR(kind) else _own()


def _own() -> bytes:
    with open(0, "rb", closefd=False) as file:
        return file.read()


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
    peak = f"{result['peak_mb']:.0f} MB" if result["peak_mb"] >= 1 else "under 1 MB"
    spent = f"{result['cpu_s']:.2f} s CPU, {result['wall_s']:.2f} s, {peak} beyond Python's own"
    print(f"[{result['verdict']}, {spent}, isolation level {result['level']}]", file=sys.stderr, flush=True)
    if result["reason"] and result["reason"] != last_line(str(result["stderr"])):  # which stands just above
        _write(sys.stderr, f"{result['reason']}\n".encode("utf-8", "backslashreplace"))
    for sentence in filter(None, (result["hint"], _left(result))):
        print(sentence, file=sys.stderr, flush=True)


def _left(result: dict[str, Any]) -> str | None:
    """What became of the file it wrote."""
    size, wanted = result["submission_bytes"], result["save"]
    if wanted is not None:
        return f"No submission.csv for '{wanted}'." if size is None else f"submission.csv is '{wanted}' ({size} bytes)."
    return None if size is None else f"submission.csv ({size} bytes) is gone with the sandbox: --save FILE keeps it."


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
    """0 only for a program that ended well and left the file that was wanted of it."""
    lacks = result["save"] is not None and result["submission_bytes"] is None
    return 0 if result["verdict"] == Verdict.OK.value and not lacks else 1
