"""What is asked of the executor and what comes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from workbench.types import Verdict, WorkbenchError

Flavour = Literal["full", "thin"]

MOST_FILES = 200
"""Files that a request may bring."""
_OURS = (".", "..", "input", "script.py")
"""Names of the working folder that a request cannot give."""


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
            if not (isinstance(value, int | float) and 0 < value <= 1e9) or (whole and value != int(value)):
                wanted = "a whole number above 0" if whole else "a number of seconds above 0"
                raise WorkbenchError(f"limit {name}={value!r} is not accepted: expected {wanted}; give {name} one.")
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
        if self.collect is not None and (not self.collect or "/" in self.collect or "\0" in self.collect):
            raise WorkbenchError(f"collect={self.collect!r} is not accepted: expected a file name without folders.")
        if self.collect_bytes is not None and self.collect_bytes < 1:
            raise WorkbenchError(f"collect_bytes={self.collect_bytes} is not accepted: expected at least 1.")
        if len(self.files) > MOST_FILES:
            raise WorkbenchError(f"{len(self.files)} files are too many for one run: give at most {MOST_FILES}.")
        for name in self.files:
            if not name.isprintable() or "/" in name or not 0 < len(name.encode()) <= 255 or name in _OURS:
                raise WorkbenchError(
                    f"files: {name!r} is not accepted: expected a printable file name without folders, of at most 255 "
                    f"bytes, and none of {', '.join(_OURS)}."
                )
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
