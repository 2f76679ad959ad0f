"""What `workbench tasks check` proves of a competition of mle-bench: its files, its board and its grader agree."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from workbench.tasks.leaderboard import better
from workbench.tasks.mlebench import BenchTask
from workbench.tasks.mlebench_metrics import LITE, METRICS
from workbench.tasks.task import SPLITS, file_sha, report
from workbench.types import WorkbenchError

Proof = Callable[[BenchTask], str | None]
"""None when it holds, else one sentence."""
ROUNDING = 1.1e-5
SHUFFLED = 200_000
"""Rows of the gold submission up to which it is graded in another order, too."""


def check_bench(task: BenchTask) -> dict[str, str | None]:
    """Every proof by name: None, or the sentence that says what does not hold."""
    found: dict[str, str | None] = {}
    for name, proof in PROOFS.items():
        try:
            found[name] = proof(task)
        except WorkbenchError as error:
            found[name] = str(error)
    return found


def _hidden(task: BenchTask) -> str | None:
    """No file that scripts see is one of the answers."""
    secrets = {path.stat().st_size: path for path in (task.answers, task.gold)}
    for folder, names, files in os.walk(task.public_dir):
        if "private" in names or (Path(folder) == task.public_dir and "answers.csv" in files):
            return f"'{folder}' holds private files: only what agents may see belongs there."
        for name in files:
            path = Path(folder, name)
            secret = secrets.get(path.stat().st_size)
            if secret is not None and file_sha(path) == file_sha(secret):
                return f"'{path}' is '{secret}': the answers lie in the public folder."
    return None


def _direction(task: BenchTask) -> str | None:
    if task.scores[0] == task.scores[-1]:
        return "leaderboard.csv begins and ends with one score, so it does not say which direction is better."
    known = LITE.get(task.id)
    if known is None:
        return None
    up = METRICS[known.metric].perfect == 1.0
    return None if up is task.higher_is_better else f"leaderboard.csv contradicts the metric {known.metric}."


def _gold(task: BenchTask) -> str | None:
    data = task.gold.read_bytes()
    found = report(task, data)
    if found["score"] is None:
        return f"the answers are invalid: {found['reason']}"
    if not found["gold_medal"]:
        return f"the answers score {found['score']} and win no gold medal."
    known = LITE.get(task.id)
    if known is None:
        return None
    perfect = METRICS[known.metric].perfect
    for split in SPLITS:
        score = task.grade(data, split).score
        if score is None or abs(score - perfect) > ROUNDING:
            return f"the answers score {score} on the rows {split}, expected {perfect}."
    return None


def _floor(task: BenchTask) -> str | None:
    """There is something to climb: the sample, or another dummy in its place, is worse than gold."""
    for split in SPLITS:
        dummy = task.dummy_score[split]
        if not better(task.thresholds.gold, dummy, task.higher_is_better):
            return f"the dummy score {dummy} on the rows {split} is not worse than gold, {task.thresholds.gold}."
    return None


def _order(task: BenchTask) -> str | None:
    """Rows may stand in any order, save where we know that the grader goes by their places."""
    known = LITE.get(task.id)
    if known is None or known.align == "order":
        return None
    frame = pd.read_csv(task.gold, dtype=str, keep_default_na=False)
    if len(frame) > SHUFFLED:
        return None
    order = np.random.default_rng(0).permutation(len(frame))
    plain, shuffled = (task.grade(table.to_csv(index=False).encode(), "final") for table in (frame, frame.iloc[order]))
    same = plain.score == shuffled.score
    return None if same else f"the answers in another order score {shuffled.score} instead of {plain.score}."


PROOFS: dict[str, Proof] = {
    "answers are hidden": _hidden,
    "direction": _direction,
    "gold is best": _gold,
    "a dummy gets the floor": _floor,
    "row order is no matter": _order,
}
