"""Ranks and medals on a frozen board of scores, by the rule of mle-bench.

The board of an embedded task holds reference pipelines, not people, so a rank on it is a reference-pipeline rank.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

from workbench.types import WorkbenchError

Medal = Literal["gold", "silver", "bronze"]


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Scores at the medal positions, and the board's median."""

    gold: float
    silver: float
    bronze: float
    median: float


def medal_positions(entries: int) -> tuple[int, int, int]:
    """1-based positions of the last gold, silver and bronze medal among `entries` (mle-bench's rule, after Kaggle)."""
    n = entries
    if n < 100:
        return max(1, int(n * 0.1)), max(1, int(n * 0.2)), max(1, int(n * 0.4))
    if n < 250:
        return 10, int(n * 0.2), int(n * 0.4)
    if n < 1000:
        return 10 + int(n * 0.002), 50, 100
    return 10 + int(n * 0.002), int(n * 0.05), int(n * 0.1)


def thresholds(scores: Sequence[float]) -> Thresholds:
    """Thresholds of a board whose `scores` stand in rank order, best first. The score AT a position is the threshold.

    Raises ValueError for an empty board.
    """
    if not scores:
        raise ValueError("a leaderboard needs at least one score")
    gold, silver, bronze = (scores[position - 1] for position in medal_positions(len(scores)))
    return Thresholds(gold, silver, bronze, float(median(scores)))


def better(score: float, other: float, higher_is_better: bool) -> bool:
    """Whether `score` is strictly better than `other`."""
    return score > other if higher_is_better else score < other


def human_rank(score: float, scores: Sequence[float], higher_is_better: bool) -> float:
    """1 - (entries strictly better) / entries, in [0, 1]; MLE-Dojo's variant of HumanRank (as in its code)."""
    ahead = sum(better(other, score, higher_is_better) for other in scores)
    return 1.0 - ahead / len(scores)


def medal(score: float, board: Thresholds, higher_is_better: bool) -> Medal | None:
    """The best medal that `score` earns; reaching a threshold is enough."""
    names: tuple[Medal, ...] = ("gold", "silver", "bronze")
    for name in names:
        if not better(getattr(board, name), score, higher_is_better):
            return name
    return None


def above_median(score: float, board: Thresholds, higher_is_better: bool) -> bool:
    """Strictly better than the board's median."""
    return better(score, board.median, higher_is_better)


def read_leaderboard(path: Path) -> tuple[float, ...]:
    """Scores of a `leaderboard.csv` in file order, which is rank order.

    Raises WorkbenchError when the file is missing, a Git LFS pointer, or has no finite column `score`.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        raise WorkbenchError(f"'{path}' cannot be read: expected a CSV file with a column 'score'.") from None
    if text.startswith("version https://git-lfs.github.com/spec/"):
        raise WorkbenchError(
            f"'{path}' is a Git LFS pointer, not the board itself: run `git lfs pull` in its checkout."
        )
    try:
        scores = tuple(float(row["score"]) for row in csv.DictReader(io.StringIO(text, newline="")))
    except (KeyError, TypeError, ValueError, csv.Error):
        scores = ()
    if not scores or not all(map(math.isfinite, scores)):
        raise WorkbenchError(f"'{path}' is no leaderboard: expected a column 'score' with one finite number per line.")
    return scores
