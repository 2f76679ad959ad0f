"""What is asked of the executor and what comes back."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from workbench.types import Verdict, WorkbenchError

Flavour = Literal["full", "thin"]


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
            value = getattr(self, name)
            if not 0 < value <= 1e9:
                raise WorkbenchError(
                    f"limit {name}={value!r} is not accepted: expected a number above 0; give {name} a positive value."
                )


@dataclass(frozen=True, slots=True)
class Request:
    """One run of one script."""

    code: str | bytes
    """Bytes are run as they are, in the encoding they declare; a string is run as UTF-8."""
    public_dir: Path | None = None
    """Folder that the script sees as ./input, read-only; below one of the executor's `data_roots`."""
    stdin: bytes = b""
    limits: Limits = field(default_factory=Limits)
    seed: int = 0
    """Seeds `random` and `numpy.random` before the first line."""
    collect: str | None = "submission.csv"
    """File of the working folder whose bytes are wanted."""
    collect_bytes: int | None = None
    """A larger one is not read but reported; None: as large as a file may be (`Limits.files_mb`)."""
    flavour: Flavour = "full"
    """full: pandas, numpy, scipy and scikit-learn are preloaded; thin: nothing is."""


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
    stdout: str
    stderr: str
    truncated: bool
    level: str
    """Isolation level A-E it ran under."""
    submission: bytes | None = None
    """Bytes of `Request.collect`; None when missing, too large or not a plain file."""
    refused: bool = False
    """The last error was a permission the sandbox does not give; a label for logs, not part of the verdict."""
    reason: str | None = None
    """One sentence when the verdict is not ok, or when there is no submission for a reason other than absence."""
