"""What every kind of ML-engineering task offers to those who use it, and what is the same for all: position, report."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Protocol

from workbench.tasks.leaderboard import Thresholds, above_median, better, medal
from workbench.types import WorkbenchError

Split = Literal["reward", "final"]
SPLITS: tuple[Split, ...] = ("reward", "final")
GraderName = Literal["workbench", "mle-bench"]
NOTHING = "no submission.csv was written."
"""The reason where there is no file."""


@dataclass(frozen=True, slots=True)
class Grade:
    """`score` rounded to 5 decimals, or the `reason` why there is none."""

    score: float | None
    reason: str | None
    grader: GraderName = "workbench"
    """Whose code computed it."""
    note: str | None = None
    """Why the competition's own grader was not used, where there should be one."""
    content: str | None = None
    """SHA-256 of what a valid submission says of each id, in whatever order and form; None where that is not known."""


class Task(Protocol):
    """A problem with public files and hidden answers; `MleTask` and `BenchTask` are the two kinds."""

    @property
    def id(self) -> str: ...

    @property
    def folder(self) -> Path:
        """What `catalog.load` reads it from."""

    @property
    def repo(self) -> Path | None:
        """The checkout of mle-bench that it needs besides."""

    @property
    def public_dir(self) -> Path:
        """All that an agent's script may read."""

    @property
    def sample(self) -> Path:
        """The sample submission."""

    @property
    def description(self) -> str: ...

    @property
    def metric_name(self) -> str: ...

    @property
    def higher_is_better(self) -> bool: ...

    @property
    def dummy_score(self) -> Mapping[Split, float]:
        """What a submission that knows nothing scores: where `position` is 0."""

    @property
    def thresholds(self) -> Thresholds: ...

    @property
    def scores(self) -> tuple[float, ...]:
        """The board, best first."""

    @property
    def max_bytes(self) -> int:
        """Size of the largest submission that is read."""

    @property
    def grading_s(self) -> float:
        """Seconds that grading may take beyond the grader's own limit."""

    @property
    def grading_mb(self) -> int:
        """Memory that grading may take beyond the grader's own limit."""

    def digest(self) -> str:
        """Equal for tasks that show a script the same files and grade what it writes in the same way."""

    def grade(self, submission: bytes | None, split: Split) -> Grade:
        """Score a submission: a finite score or a reason, whatever the bytes are. Runs nobody else's code in this
        process."""

    def grade_here(self, submission: bytes, split: Split) -> Grade:
        """The same in the grader's process, where the competition's own code may run."""


def position(task: Task, score: float, split: Split) -> float:
    """Where a score lies between the dummy (0) and the gold threshold (1), clipped: our choice of reward scale.

    A formula that works in both directions: (score - dummy) / (gold - dummy).
    Raises WorkbenchError for a task whose gold is no better than its dummy.
    """
    dummy, gold = task.dummy_score[split], task.thresholds.gold
    if not better(gold, dummy, task.higher_is_better):
        raise WorkbenchError(
            f"The gold threshold {gold} of task '{task.id}' is not better than its dummy score {dummy}: leave this "
            "task out of training."
        )
    return min(1.0, max(0.0, (score - dummy) / (gold - dummy)))


def report(task: Task, submission: bytes | None, path: Path | str | None = None) -> dict[str, Any]:
    """mle-bench's `CompetitionReport` fields for the rows `final`, and `reason` (None when valid), `grader` (whose code
    scored it), `grader_note` (why not the competition's own, where there should be one)."""
    result = task.grade(submission, "final")
    board, up = task.thresholds, task.higher_is_better
    score = result.score
    won = None if score is None else medal(score, board, up)
    return {
        "competition_id": task.id,
        "score": score,
        "gold_threshold": board.gold,
        "silver_threshold": board.silver,
        "bronze_threshold": board.bronze,
        "median_threshold": board.median,
        "any_medal": won is not None,
        "gold_medal": won == "gold",
        "silver_medal": won == "silver",
        "bronze_medal": won == "bronze",
        "above_median": score is not None and above_median(score, board, up),
        "submission_exists": submission is not None,
        "valid_submission": score is not None,
        "is_lower_better": not up,
        "created_at": datetime.now().isoformat(),
        "submission_path": "" if path is None else str(path),
        "reason": result.reason,
        "grader": result.grader,
        "grader_note": result.note,
    }


def stamp(path: Path) -> tuple[int, int]:
    """(time of the last change in ns, bytes): what a memory of a file's content is kept under."""
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_size


def file_sha(path: Path) -> str:
    """SHA-256 of a file, read once and again when it changes."""
    return _file_sha(path, stamp(path))


@lru_cache(maxsize=4096)
def _file_sha(path: Path, changed: tuple[int, int]) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
