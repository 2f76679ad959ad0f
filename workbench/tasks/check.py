"""Every task proves itself: its files, its grader and its board agree with each other, whatever the task is."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from workbench.tasks.gates import above_ceiling
from workbench.tasks.leaderboard import better
from workbench.tasks.leakage import find_leak, tables, target_codes
from workbench.tasks.metrics import BINARY
from workbench.tasks.mle import (
    FILES,
    MleTask,
    answers,
    grade,
    read_config,
    submission_bytes,
)
from workbench.tasks.pipelines import constant
from workbench.tasks.submission import canonical_id
from workbench.tasks.task import SPLITS, Split, position, report
from workbench.types import WorkbenchError

__all__ = ["PROOFS", "check_task", "submission_bytes"]

SHARE: dict[Split, float] = {"reward": 0.4, "final": 0.6}
"""How the private rows are split, up to SLACK."""
SLACK = 0.02
ROUNDING = 1.1e-5
"""Scores are rounded to five decimals."""

Proof = Callable[[MleTask], str | None]
"""None when it holds, else one sentence."""


def check_task(task: MleTask) -> dict[str, str | None]:
    """Every proof by name: None, or the sentence that says what does not hold.

    The others build on the first three: at the first of those that fails, it ends.
    """
    found: dict[str, str | None] = {}
    for name, proof in PROOFS.items():
        try:
            found[name] = proof(task)
        except WorkbenchError as error:
            found[name] = str(error)
        if name in BASIS and found[name]:
            break
    return found


def _answers(task: MleTask) -> str | None:
    truth = answers(task)
    if task.metric.name in BINARY:
        for split in SPLITS:
            if set(truth.truth[truth.rows[split], 0]) != {0.0, 1.0}:
                return f"answers.csv must hold 0 and 1 among the rows {split}, {task.metric.name} needs nothing else."
    if task.metric.name == "logloss" and not ((truth.truth == 1).sum(axis=1) == 1).all():
        return "answers.csv must hold one 1 and otherwise 0 on every line, in the columns of the classes."
    return None


def _shown(task: MleTask) -> str | None:
    """A script sees all that lies in public/, so nothing lies there but what belongs to the task."""
    belongs = {Path(name).name for name in FILES if name.startswith("public/")}
    more = sorted({path.name for path in task.public_dir.iterdir()} - belongs)
    if more:
        return f"public/ holds '{more[0]}', which every script can read: expected {', '.join(sorted(belongs))} alone."
    return None


def _columns(task: MleTask) -> str | None:
    """The three public tables have the columns and ids that belong to them."""
    frames = dict(zip(("train", "test", "sample_submission"), _public(task), strict=True))
    wanted = {"train": (task.id_column, task.train_target), "sample_submission": (task.id_column, *task.target_columns)}
    for name, frame in frames.items():
        for column in wanted.get(name, (task.id_column,)):
            if column not in frame:
                return f"column '{column}' is missing in {name}.csv: its columns are {', '.join(frame.columns[:12])}."
        count = Counter(map(canonical_id, frame[task.id_column]))
        text, times = max(count.items(), key=lambda item: item[1], default=("", 0))
        if times != 1 or "" in count:
            what = "no rows" if times == 0 else "a row without an id" if "" in count else f"id '{text}' {times} times"
            return f"{name}.csv has {what}: every row needs an id of its own."
    features = [name for name in frames["train"].columns if name != task.train_target]
    test = [name for name in frames["test"].columns if name != task.train_target]
    if odd := sorted(set(features) ^ set(test)):
        return f"column '{odd[0]}' stands in one of train.csv and test.csv only: both need the same features."
    try:
        target_codes(task, frames["train"])
    except (KeyError, ValueError) as error:
        return f"column '{task.train_target}' of train.csv holds a value that is no label or number: {error}."
    return None


def _public(task: MleTask) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    try:
        sample = pd.read_csv(task.public_dir / "sample_submission.csv", dtype=str, keep_default_na=False)
        return (*tables(task), sample)
    except (ValueError, OSError) as error:  # pandas' own errors are ValueErrors
        raise WorkbenchError(f"a file in '{task.public_dir}' is no CSV file: {' '.join(str(error).split())}.") from None


def _files(task: MleTask) -> str | None:
    recorded = read_config(task.folder).get("sha256")
    if recorded is None:
        return None
    if not isinstance(recorded, dict):
        return "sha256 in config.yaml must be lines of `file: hash`."
    for name, expected in recorded.items():
        path = task.folder / str(name)
        if str(name) not in FILES or not path.is_file():
            return f"'{name}' is named in config.yaml and missing."
        if hashlib.sha256(path.read_bytes()).hexdigest() != expected:
            return f"'{name}' is not the file that config.yaml has the sha256 of."
    return None


def _gold(task: MleTask) -> str | None:
    data = submission_bytes(task, answers(task).truth)
    for split in SPLITS:
        result = grade(task, data, split)
        if result.score is None or not math.isclose(result.score, task.metric.perfect, abs_tol=ROUNDING):
            return f"the answers score {result.score} on the rows {split}, expected {task.metric.perfect}."
    if not report(task, data)["gold_medal"]:
        return "the answers win no gold medal."
    beaten = [score for score in task.scores if better(score, task.metric.perfect, task.higher_is_better)]
    return f"{len(beaten)} entries of leaderboard.csv are better than the answers." if beaten else None


def _sample(task: MleTask) -> str | None:
    data = (task.public_dir / "sample_submission.csv").read_bytes()
    result = grade(task, data, "final")
    if result.score is None:
        return f"sample_submission.csv is invalid: {result.reason}"
    if not better(task.thresholds.median, result.score, task.higher_is_better):
        return f"sample_submission.csv scores {result.score}, not worse than the median {task.thresholds.median}."
    return None


def _constant(task: MleTask) -> str | None:
    truth = answers(task)
    target = truth.truth.argmax(axis=1) if task.metric.name == "logloss" else truth.truth[:, 0]
    classes = len(task.classes or task.target_columns)
    for split in SPLITS:
        best = constant(task.metric.name, target[truth.rows[split]], classes)
        score = _score_of(task, best, split)
        stated = task.dummy_score[split]
        if score is None or not math.isclose(score, stated, abs_tol=ROUNDING):
            return f"the best constant scores {score} on the rows {split}, and dummy_score says {stated}."
        for values in _constants(task, target, classes):
            score = _score_of(task, values, split)
            if score is not None and position(task, score, split) > 0:
                return f"a constant scores {score} on the rows {split}, above the floor {stated}."
    return None


def _constants(task: MleTask, target: NDArray[Any], classes: int) -> Iterator[NDArray[np.float64]]:
    """What a script that learnt nothing may say of every row."""
    yield constant(task.metric.name, target, classes)
    if task.metric.wants == "label":
        yield from (np.array([float(code)]) for code in range(classes))
    elif task.metric.name == "logloss":
        yield np.full(classes, 1 / classes)
    elif task.metric.name in BINARY:
        yield from (np.array([value]) for value in (0.0, 1.0))
    else:
        yield from (np.array([value]) for value in (0.0, float(np.mean(target)), float(np.median(target))))


def _score_of(task: MleTask, values: NDArray[np.float64], split: Split) -> float | None:
    rows = len(answers(task).truth)
    return grade(task, submission_bytes(task, np.tile(values, (rows, 1))), split).score


def _order(task: MleTask) -> str | None:
    values = np.roll(answers(task).truth, 1, axis=0)
    order = np.random.default_rng(task.seed).permutation(len(values))
    for split in SPLITS:
        plain = grade(task, submission_bytes(task, values), split)
        shuffled = grade(task, submission_bytes(task, values, order.tolist()), split)
        if plain != shuffled or plain.score is None:
            return f"shuffled rows score {shuffled.score} instead of {plain.score} on the rows {split}."
    return None


def _thresholds(task: MleTask) -> str | None:
    for one, other in itertools.pairwise(task.scores):
        if better(other, one, task.higher_is_better):
            return f"leaderboard.csv is not in rank order: {other} stands after {one}."
    stated = read_config(task.folder).get("thresholds")
    if stated is None:
        return None
    for name, value in zip(("gold", "silver", "bronze", "median"), astuple(task.thresholds), strict=True):
        number = stated.get(name) if isinstance(stated, dict) else None
        if not isinstance(number, int | float) or not math.isclose(number, value, rel_tol=1e-9, abs_tol=1e-12):
            return f"the {name} threshold is {number} in config.yaml and {value} by leaderboard.csv."
    return None


def _ceiling(task: MleTask) -> str | None:
    return above_ceiling(task, read_config(task.folder))


def _ids(task: MleTask) -> str | None:
    train, test, sample = (set(map(canonical_id, frame[task.id_column])) for frame in _public(task))
    private = set(answers(task).form.rows)
    if shared := train & test:
        return f"id '{min(shared)}' stands in train.csv and in test.csv."
    for name, ids in (("test.csv", test), ("sample_submission.csv", sample)):
        if ids != private:
            example = min(ids ^ private)
            return f"{name} and answers.csv differ in {len(ids ^ private)} ids, for example '{example}'."
    return None


def _split(task: MleTask) -> str | None:
    rows = answers(task).rows
    total = sum(map(len, rows.values()))
    for split, expected in SHARE.items():
        share = len(rows[split]) / total
        if abs(share - expected) > max(SLACK, 0.5 / total):
            return f"{share:.0%} of the private rows are {split}, expected {expected:.0%}."
    return None


def _stated(task: MleTask) -> str | None:
    for name, text in (("source", task.source), ("licence", task.licence)):
        if not text.strip():
            return f"config.yaml states no {name}."
    text = " ".join(task.description.lower().split())
    right, wrong = ("higher", "lower") if task.higher_is_better else ("lower", "higher")
    if not re.search(rf"\b{task.metric.name}\b", text):
        return f"description.md does not name the metric {task.metric.name}."
    if f"{right} is better" not in text or f"{wrong} is better" in text:
        return f"description.md does not say '{right} is better'."
    return None


BASIS = ("answers", "columns", "ids")
PROOFS: dict[str, Proof] = {
    "answers": _answers,
    "columns": _columns,
    "ids": _ids,
    "nothing else is shown": _shown,
    "files": _files,
    "gold is best": _gold,
    "sample is valid": _sample,
    "a constant gets the floor": _constant,
    "row order is no matter": _order,
    "thresholds": _thresholds,
    "below the ceiling": _ceiling,
    "no look-up": find_leak,
    "split": _split,
    "stated": _stated,
}
