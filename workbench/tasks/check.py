"""Every task proves itself: its files, its grader and its board agree with each other, whatever the task is."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import astuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from workbench.tasks.leaderboard import better
from workbench.tasks.mle import SPLITS, MleTask, answers, grade, position, read_config, report
from workbench.tasks.pipelines import constant
from workbench.tasks.submission import canonical_id

LOOKED_UP = 0.01
"""Most test rows whose features may stand in train.csv as well."""
SHARE = {"reward": 0.4, "final": 0.6}
"""How the private rows are split."""

Proof = Callable[[MleTask], str | None]
"""None when it holds, else one sentence."""


def check_task(task: MleTask) -> dict[str, str | None]:
    """Every proof by name: None, or the sentence that says what does not hold."""
    return {name: proof(task) for name, proof in PROOFS.items()}


def submission_bytes(task: MleTask, values: NDArray[np.float64], order: Sequence[int] | None = None) -> bytes:
    """`values` [answers, target columns], label codes included, as the CSV that a script would write."""
    form = answers(task).form
    ids = list(form.rows)
    frame = pd.DataFrame({task.id_column: ids})
    for place, name in enumerate(task.target_columns):
        column = values[:, place]
        frame[name] = [task.classes[int(code)] for code in column] if task.metric.wants == "label" else column
    if order is not None:
        frame = frame.iloc[list(order)]
    return frame.to_csv(index=False).encode()


def _files(task: MleTask) -> str | None:
    recorded = read_config(task.folder).get("sha256") or {}
    for name, expected in recorded.items():
        path = task.folder / str(name)
        if not path.is_file():
            return f"'{name}' is named in config.yaml and missing."
        if hashlib.sha256(path.read_bytes()).hexdigest() != expected:
            return f"'{name}' is not the file that config.yaml has the sha256 of."
    return None


def _gold(task: MleTask) -> str | None:
    truth = answers(task).truth
    for split in SPLITS:
        result = grade(task, submission_bytes(task, truth), split)
        if result.score is None or not math.isclose(result.score, task.metric.perfect, abs_tol=1e-5):
            return f"the answers score {result.score} on the rows {split}, expected {task.metric.perfect}."
    if not report(task, submission_bytes(task, truth))["gold_medal"]:
        return "the answers win no gold medal."
    beaten = [score for score in task.scores if better(score, task.metric.perfect, task.higher_is_better)]
    return f"{len(beaten)} entries of leaderboard.csv are better than the answers." if beaten else None


def _sample(task: MleTask) -> str | None:
    data = (task.public_dir / "sample_submission.csv").read_bytes()
    result = grade(task, data, "final")
    if result.score is None:
        return f"sample_submission.csv is invalid: {result.reason}"
    if better(result.score, task.thresholds.median, task.higher_is_better):
        return f"sample_submission.csv scores {result.score}, better than the median {task.thresholds.median}."
    return None


def _constant(task: MleTask) -> str | None:
    truth = answers(task)
    target = truth.truth.argmax(axis=1) if task.metric.name == "logloss" else truth.truth[:, 0]
    values = np.tile(constant(task.metric.name, target, len(task.classes or task.target_columns)), (len(target), 1))
    for split in SPLITS:
        score = grade(task, submission_bytes(task, values), split).score
        if score is None or position(task, score, split) > 0:
            return f"a constant scores {score} on the rows {split}, above the floor {task.dummy_score[split]}."
    return None


def _order(task: MleTask) -> str | None:
    values = np.roll(answers(task).truth, 1, axis=0)
    order = np.random.default_rng(task.seed).permutation(len(values))
    for split in SPLITS:
        plain = grade(task, submission_bytes(task, values), split)
        shuffled = grade(task, submission_bytes(task, values, order.tolist()), split)
        if plain != shuffled:
            return f"shuffled rows score {shuffled.score} instead of {plain.score}."
    return None


def _thresholds(task: MleTask) -> str | None:
    stated = read_config(task.folder).get("thresholds")
    if stated is None:
        return None
    for name, value in zip(("gold", "silver", "bronze", "median"), astuple(task.thresholds), strict=True):
        if not math.isclose(float(stated.get(name, math.nan)), value, rel_tol=1e-9):
            return f"the {name} threshold is {stated.get(name)} in config.yaml and {value} by leaderboard.csv."
    return None


def _ids(task: MleTask) -> str | None:
    train, test, sample = (_ids_of(task, name) for name in ("train", "test", "sample_submission"))
    private = set(answers(task).form.rows)
    if shared := train & test:
        return f"id '{min(shared)}' stands in train.csv and in test.csv."
    if test != private:
        return f"test.csv and answers.csv differ in {len(test ^ private)} ids."
    return (
        None if sample == private else f"sample_submission.csv and answers.csv differ in {len(sample ^ private)} ids."
    )


def _ids_of(task: MleTask, name: str) -> set[str]:
    frame = pd.read_csv(task.public_dir / f"{name}.csv", dtype=str, keep_default_na=False)
    return set() if task.id_column not in frame else {canonical_id(text) for text in frame[task.id_column]}


def _look_up(task: MleTask) -> str | None:
    train, test = (
        pd.read_csv(task.public_dir / f"{name}.csv", dtype=str, keep_default_na=False) for name in ("train", "test")
    )
    if leaked := sorted(set(task.target_columns) & set(test.columns)):
        return f"test.csv holds the target column '{leaked[0]}'."
    features = [name for name in test.columns if name in train.columns and name != task.id_column]
    known = set(map(tuple, train[features].to_numpy()))
    share = sum(tuple(row) in known for row in test[features].to_numpy()) / max(1, len(test))
    return (
        f"{share:.1%} of the test rows stand in train.csv, at most {LOOKED_UP:.0%} may." if share > LOOKED_UP else None
    )


def _split(task: MleTask) -> str | None:
    rows = answers(task).rows
    total = sum(map(len, rows.values()))
    for split, expected in SHARE.items():
        share = len(rows[split]) / total  # type: ignore[index]
        if abs(share - expected) > 0.05:
            return f"{share:.0%} of the private rows are {split}, expected about {expected:.0%}."
    return None


def _stated(task: MleTask) -> str | None:
    for name, text in (("source", task.source), ("licence", task.licence)):
        if not text.strip():
            return f"config.yaml states no {name}."
    direction = "higher is better" if task.higher_is_better else "lower is better"
    if direction not in " ".join(task.description.lower().split()):
        return f"description.md does not say '{direction}'."
    return None


PROOFS: dict[str, Proof] = {
    "files": _files,
    "gold is best": _gold,
    "sample is valid": _sample,
    "a constant gets the floor": _constant,
    "row order is no matter": _order,
    "thresholds": _thresholds,
    "ids": _ids,
    "no look-up": _look_up,
    "split": _split,
    "stated": _stated,
}
