"""Can the answers be had without learning: looked up in train.csv, or read off the ids and the order of the rows?

Three submissions are made the way a cheat would make them and graded; none may be worth anything. (Rows of data sets
that packages bundle are no way in either: the sandbox masks them.)
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from workbench.tasks.leaderboard import better
from workbench.tasks.metrics import Metric
from workbench.tasks.mle import MleTask, answers, grade, submission_bytes
from workbench.tasks.submission import canonical_id
from workbench.tasks.task import position

Array = NDArray[np.float64]

TWINS = 0.01
"""Most test rows whose features may stand in train.csv as well: different things can look the same."""
BY_ORDER = 0.25
"""Highest position that neighbours by id or by row may reach; without a leak it is 0 up to the noise of small tests."""
NEIGHBOURS = 10
SAME_RANK = 0.9999
"""A number this closely ranked with the target is the target in other units."""


def tables(task: MleTask) -> tuple[pd.DataFrame, pd.DataFrame]:
    """train.csv and test.csv as text."""
    train, test = (
        pd.read_csv(task.public_dir / f"{name}.csv", dtype=str, keep_default_na=False) for name in ("train", "test")
    )
    return train, test


def find_leak(task: MleTask) -> str | None:
    """The first way found to the answers, as one sentence."""
    train, test = tables(task)
    if leaked := sorted({*task.target_columns, task.train_target} & set(test.columns)):
        return f"test.csv holds the target column '{leaked[0]}'."
    features = [name for name in test.columns if name in train.columns and name != task.id_column]
    known = set(map(tuple, train[features].to_numpy()))
    share = sum(tuple(row) in known for row in test[features].to_numpy()) / max(1, len(test))
    if features and share > TWINS:
        return f"{share:.1%} of the test rows stand in train.csv, at most {TWINS:.0%} may: drop rows that repeat."
    target = target_codes(task, train)
    return _by_column(task, train, test, features, target) or _by_order(task, train, test, target)


def target_codes(task: MleTask, train: pd.DataFrame) -> Array:
    """The target of train.csv as numbers: class codes where there are classes."""
    labels = task.classes or (task.target_columns if task.metric.name == "logloss" else ())
    texts = train[task.train_target]
    if labels:
        codes = {canonical_id(label): float(code) for code, label in enumerate(labels)}
        return np.array([codes[canonical_id(text)] for text in texts])
    return texts.astype(float).to_numpy()


def _by_column(
    task: MleTask, train: pd.DataFrame, test: pd.DataFrame, features: list[str], target: Array
) -> str | None:
    """Each feature alone as a look-up table: value -> target."""
    for name in features:
        values = pd.to_numeric(train[name], errors="coerce").to_numpy(dtype=float)
        whole = np.isfinite(values)
        if whole.mean() > 0.5 and _same_rank(values[whole], target[whole]):
            return f"column '{name}' is the target in other units: leave it out."
        known = {value: _guess(task.metric, target[rows], task) for value, rows in train.groupby(name).indices.items()}
        otherwise = _guess(task.metric, target, task)
        score = _score(task, test, np.array([known.get(value, otherwise) for value in test[name]]))
        if score is not None and not better(task.thresholds.gold, score, task.higher_is_better):
            return f"column '{name}' alone gives the target away: its look-up table scores {score}, a gold medal."
    return None


def _same_rank(values: Array, target: Array) -> bool:
    """Whether a number of many values has the order of the target, or the reverse."""
    if len(np.unique(target)) < 20 or len(np.unique(values)) < 20:
        return False
    ranks = [pd.Series(column).rank().to_numpy() for column in (values, target)]
    return bool(abs(np.corrcoef(*ranks)[0, 1]) > SAME_RANK)


def _by_order(task: MleTask, train: pd.DataFrame, test: pd.DataFrame, target: Array) -> str | None:
    """The nearest train rows by id, and by place in the file."""
    for what, own, others in _orders(task, train, test):
        ranked = np.argsort(own, kind="stable")
        left = np.searchsorted(own[ranked], others) - NEIGHBOURS // 2
        left = np.clip(left, 0, max(0, len(own) - NEIGHBOURS))
        near = [target[ranked[start : start + NEIGHBOURS]] for start in left]
        score = _score(task, test, np.array([_guess(task.metric, codes, task) for codes in near]))
        if score is not None and position(task, score, "final") > BY_ORDER:
            return f"{what} gives the target away: the nearest train rows by it score {score}, draw ids and order anew."
    return None


def _orders(task: MleTask, train: pd.DataFrame, test: pd.DataFrame) -> Iterator[tuple[str, Array, Array]]:
    ids = pd.concat([train[task.id_column], test[task.id_column]])
    numbers = pd.to_numeric(ids.str.extract(r"(\d{1,15})(?!.*\d)")[0], errors="coerce").to_numpy(dtype=float)
    if np.isfinite(numbers).all():
        yield "the number in the id", numbers[: len(train)], numbers[len(train) :]
    yield "the order of the rows", np.linspace(0, 1, len(train)), np.linspace(0, 1, len(test))


def _guess(metric: Metric, target: Array, task: MleTask) -> Array:
    """What one says of rows whose likes have these targets, [columns]."""
    if metric.name == "logloss":
        counts = np.bincount(target.astype(int), minlength=len(task.target_columns)) + 0.01
        return np.asarray(counts / counts.sum())
    if metric.wants == "label":
        return np.array([float(np.bincount(target.astype(int)).argmax())])
    return np.array([float(np.median(target) if metric.name == "mae" else np.mean(target))])


def _score(task: MleTask, test: pd.DataFrame, values: Array) -> float | None:
    """On the rows `final`; `values` stand in the order of test.csv."""
    rows = answers(task).form.rows
    places = [rows[canonical_id(text)] for text in test[task.id_column]]
    ordered = np.empty_like(values)
    ordered[places] = values
    return grade(task, submission_bytes(task, ordered), "final").score
