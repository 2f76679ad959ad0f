"""What is asked of the executor and what comes back."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar, get_args

from workbench.types import Verdict, WorkbenchError

Flavour = Literal["full", "thin"]
Word = TypeVar("Word", bound=str)
FLAVOURS: tuple[Flavour, ...] = get_args(Flavour)

MOST_FILES = 200
"""Files that a request may bring."""
_OURS = (".", "..", "input", "script.py")
"""Names of the working folder that a request cannot give."""
MOST = 1e9
"""Largest value of any limit."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one run."""

    cpu_s: float = 5.0
    """CPU seconds, summed over all processes of the run."""
    wall_s: float = 15.0
    """Seconds from the first line of the script."""
    memory_mb: int = 1024
    """MB beyond the preloaded interpreter, summed over all processes of the run."""
    processes: int = 64
    """Processes and threads at once."""
    output_kb: int = 256
    """Kept of stdout, and of stderr. More on stdout ends the run; more on stderr is cut in the middle."""
    files_mb: int = 64
    """Size of the working folder, and of the folder for temporary files; also of any one file."""
    threads: int = 1
    """Threads of numpy's and scikit-learn's native code."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value, whole = getattr(self, name), not name.endswith("_s")
            if not (isinstance(value, int | float) and 0 < value <= MOST) or (whole and value != int(value)):
                wanted = "a whole number" if whole else "a number of seconds"
                raise WorkbenchError(
                    f"limit {name}={value!r} is not accepted: expected {wanted} above 0, and at most "
                    f"{MOST:,.0f}; give {name} one."
                )
            object.__setattr__(self, name, int(value) if whole else float(value))


@dataclass(frozen=True, slots=True)
class Request:
    """One run of one script."""

    code: str | bytes
    """Bytes are run as they are, in the encoding they declare; a string is run as UTF-8."""
    public_dir: Path | None = None
    """Folder that the script sees as ./input, read-only; below one of the executor's `data_roots`."""
    stdin: bytes = b""
    files: Mapping[str, bytes] = field(default_factory=dict, hash=False)
    """Files of the working folder before the first line, by name; with the script within `Limits.files_mb`."""
    limits: Limits = field(default_factory=Limits)
    seed: int = 0
    """Seeds `random` and `numpy.random` before the first line."""
    collect: str | None = "submission.csv"
    """File of the working folder whose bytes are wanted."""
    collect_bytes: int | None = None
    """A larger one is not read but reported; None: as large as a file may be (`Limits.files_mb`)."""
    flavour: Flavour = "full"
    """full: pandas, numpy, scipy and scikit-learn are preloaded; thin: nothing is."""

    def __post_init__(self) -> None:
        expect("code", self.code, (str, bytes), "the text or bytes of a script")
        expect("public_dir", self.public_dir, (str, os.PathLike, type(None)), "a folder")
        expect("stdin", self.stdin, (bytes,), 'bytes, such as b"4 5\\n"; `.encode()` makes bytes of text')
        expect("files", self.files, (Mapping,), 'bytes by file name, such as {"data.txt": b"4 5\\n"}')
        expect("limits", self.limits, (Limits,), "`Limits(...)`")
        expect("seed", self.seed, (int,), "a whole number")
        expect("collect", self.collect, (str, type(None)), "a file name without folders")
        if self.flavour not in FLAVOURS:
            raise WorkbenchError(f"flavour={self.flavour!r} is not accepted: expected {' or '.join(FLAVOURS)}.")
        if self.collect in ("", ".", "..") or (self.collect and ("/" in self.collect or "\0" in self.collect)):
            raise WorkbenchError(f"collect={self.collect!r} is not accepted: expected a file name without folders.")
        at_least_one(collect_bytes=self.collect_bytes)
        _check_files(self.files)
        pages = sum(-(-len(data) // 4096) for data in (self.code, *self.files.values()))
        if self.files and pages * 4096 > self.limits.files_mb * 2**20:
            raise WorkbenchError(
                f"{len(self.files)} files and the script take {pages * 4096} bytes, which is more than "
                f"files_mb={self.limits.files_mb} allows: give fewer, or raise that limit."
            )


@dataclass(frozen=True, slots=True)
class Result:
    """What happened. The verdict is of the run alone: whether the submission is any good is for a grader to say."""

    verdict: Verdict
    exit_code: int | None
    """As `python script.py` would return; None when a signal ended it."""
    signal: int | None
    cpu_s: float
    wall_s: float
    peak_mb: float
    """Largest memory seen beyond the preloaded interpreter."""
    stdout_bytes: bytes
    """Judged by these: two outputs that differ may read the same as text."""
    stderr_bytes: bytes
    truncated: bool
    level: str
    """Isolation level A-E it ran under."""
    submission: bytes | None = None
    """Bytes of `Request.collect`; None when missing, too large or not a plain file."""
    refused: bool = False
    """The last error was a permission the sandbox does not give; a label for logs, not part of the verdict."""
    reason: str | None = None
    """One sentence when the verdict is not ok, or when there is no submission for a reason other than absence."""

    @property
    def stdout(self) -> str:
        """As text for people and prompts; what is no UTF-8 is replaced."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        return self.stderr_bytes.decode("utf-8", "replace")


def expect(name: str, value: object, kinds: tuple[type, ...], wanted: str) -> None:
    """Raise `WorkbenchError` unless `value` is of one of `kinds`; `wanted` says so in words."""
    if not isinstance(value, kinds):
        raise WorkbenchError(f"{name}={repr(value)[:80]} is not accepted: expected {wanted}.")


def at_least_one(**counts: int | None) -> None:
    """Raise `WorkbenchError` for a count that is given and is no whole number of at least 1."""
    for name, count in counts.items():
        expect(name, count, (int, type(None)), "a whole number of at least 1")
        if count is not None and count < 1:
            raise WorkbenchError(f"{name}={count} is not accepted: expected at least 1.")


def some_of(name: str, values: Sequence[Word], known: Sequence[str]) -> tuple[Word, ...]:
    """`values`; raises `WorkbenchError` for one that is not `known`, and for one word in place of a list."""
    if isinstance(values, str) or any(value not in known for value in values):
        raise WorkbenchError(
            f"{name}={values!r} is not accepted: expected a list of some of {', '.join(known)}, such as [{known[0]!r}]."
        )
    return tuple(values)


def _check_files(files: Mapping[str, bytes]) -> None:
    if len(files) > MOST_FILES:
        raise WorkbenchError(f"{len(files)} files are too many for one run: give at most {MOST_FILES}.")
    for name, data in files.items():
        expect("name of a file", name, (str,), "text")
        expect(f"files[{name!r}]", data, (bytes,), "bytes; `.encode()` makes bytes of text")
        if not name.isprintable() or "/" in name or not 0 < len(name.encode()) <= 255 or name in _OURS:
            raise WorkbenchError(
                f"files: {name!r} is not accepted: expected a printable file name without folders, of at most 255 "
                f"bytes, and none of {', '.join(_OURS)}."
            )
