"""Seeded synthetic tasks whose law is known, and with it the noise ceiling: the score of the best possible predictor.

`synthetic:KIND-SEED`, for example `synthetic:binary-7`, names one wherever a task is named. It is made when it is first
asked for, in seconds, and kept in `out/tasks/`; the same name makes the same files.

Features are drawn first and rounded as they are written; the target is drawn from them alone. Only columns that say
nothing have gaps. So the law itself, applied to a row of test.csv, is the best predictor there is.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from numpy.typing import NDArray

from workbench.config import ROOT
from workbench.tasks.build import Blueprint, Keys, build_task
from workbench.tasks.catalog import SYNTHETIC
from workbench.tasks.gates import weak_board
from workbench.tasks.mle import SPLITS, MleTask, answers, grade, load_task, submission_bytes
from workbench.tasks.submission import canonical_id
from workbench.types import WorkbenchError

MADE_DIR = ROOT / "out" / "tasks"
TRAIN_ROWS, TEST_ROWS = 600, 1500
ENTRIES = 60
DRAWS = 8
"""Laws drawn for one name: the first whose board passes the gates is kept."""
LEVELS = "abcdef"
Array = NDArray[np.float64]
Rng = np.random.Generator


@dataclass(frozen=True, slots=True)
class World:
    """A table drawn from a law."""

    table: pd.DataFrame
    """Features, and the target as the last column."""
    best: Array
    """[rows, columns of a submission] what the law predicts, best for the metric in expectation."""


@dataclass(frozen=True, slots=True)
class Law:
    """A kind of task: its metric, and how (random numbers, features) become the target and the best predictions."""

    metric: str
    target: Callable[[Rng, Signals], tuple[NDArray[np.generic], Array]]
    summary: str
    meaning: str
    classes: tuple[str, ...] = ()


class Signals:
    """Smooth and broken functions of the columns that matter, drawn as they are asked for."""

    def __init__(self, rng: Rng, rows: int) -> None:
        self._rng = rng
        numbers, words = int(rng.integers(4, 7)), int(rng.integers(1, 3))
        shapes: tuple[Callable[[], Array], ...] = (
            lambda: rng.normal(size=rows),
            lambda: rng.uniform(-1.8, 1.8, size=rows),
            lambda: np.log(rng.exponential(size=rows) + 0.2),
        )
        self.numbers = [np.round(shapes[int(rng.integers(3))](), 3) for _ in range(numbers)]
        self.words = [rng.integers(int(rng.integers(3, len(LEVELS) + 1)), size=rows) for _ in range(words)]

    def draw(self) -> Array:
        """One signal per row, with mean 0 and deviation 1: parts of one column each, and of two together."""
        rng = self._rng
        parts = [_bent(rng, column) * rng.uniform(0.6, 1.4) for column in self.numbers]
        parts += [rng.normal(size=len(LEVELS))[column] * 0.7 for column in self.words]
        one, other = rng.choice(len(self.numbers), size=2, replace=False)
        parts.append(1.2 * self.numbers[one] * self.numbers[other])
        turned = rng.choice([-1.0, 1.0], size=len(LEVELS))[self.words[0]]
        parts.append(1.2 * turned * self.numbers[int(rng.integers(len(self.numbers)))])
        return _standard(np.sum(parts, axis=0))

    def features(self) -> pd.DataFrame:
        """The columns in random order, among others that say nothing; only the latter have gaps."""
        rng = self._rng
        columns: list[NDArray[np.generic]] = [*self.numbers]
        columns += [np.array(list(LEVELS))[column] for column in self.words]
        for _ in range(int(rng.integers(2, 5))):
            like = self.numbers[int(rng.integers(len(self.numbers)))]
            idle = np.round(0.5 * like + rng.normal(size=len(like)), 3)
            idle[rng.random(len(like)) < rng.uniform(0.0, 0.2)] = np.nan
            columns.append(idle)
        order = rng.permutation(len(columns))
        return pd.DataFrame({f"f{place:02d}": columns[at] for place, at in enumerate(order, start=1)})


def _bent(rng: Rng, values: Array) -> Array:
    """A function of one column: a line, a wave, a step, a bend or a bowl."""
    at, pace = rng.normal() * 0.5, rng.uniform(1.5, 2.5)
    shapes = (values, np.sin(pace * values), np.where(values > at, 1.0, 0.0), np.abs(values - at), values**2)
    return _standard(shapes[int(rng.integers(len(shapes)))]) * rng.choice([-1.0, 1.0])


def _standard(values: NDArray[Any]) -> Array:
    return np.asarray((values - values.mean()) / max(values.std(), 1e-9))


def _sigmoid(values: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-values)))


def _binary(rng: Rng, signals: Signals) -> tuple[NDArray[np.generic], Array]:
    chance = _sigmoid(rng.uniform(2.0, 3.5) * signals.draw() + rng.uniform(-0.5, 0.5))
    return (rng.random(len(chance)) < chance).astype(int), chance[:, None]


def _rare(rng: Rng, signals: Signals) -> tuple[NDArray[np.generic], Array]:
    """About one row in ten is 1."""
    happened, chance = _seldom(rng, signals, 0.08, 0.14)
    return happened, chance[:, None]


def _flag(rng: Rng, signals: Signals) -> tuple[NDArray[np.generic], Array]:
    happened, chance = _seldom(rng, signals, 0.15, 0.3)
    return np.array(FLAGS)[happened], best_flags(chance)[:, None]


def best_flags(chance: Array) -> Array:
    """1 for the rows with the largest chances, as many as give the highest F1 but for terms of 1/rows: with k rows
    flagged, 2·Σ p over them / (k + Σ p over all)."""
    order = np.argsort(-chance, kind="stable")
    expected = 2 * chance[order].cumsum() / (np.arange(1, len(chance) + 1) + chance.sum())
    flags = np.zeros(len(chance))
    flags[order[: expected.argmax() + 1]] = 1.0
    return flags


def _seldom(rng: Rng, signals: Signals, least: float, most: float) -> tuple[NDArray[np.int64], Array]:
    """(0 or 1, its chance) with a share of ones between `least` and `most`: the offset is found by halving."""
    steep, wanted, signal = rng.uniform(2.5, 4.0), rng.uniform(least, most), signals.draw()
    low, high = -20.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _sigmoid(steep * signal + middle).mean() < wanted else (low, middle)
    chance = _sigmoid(steep * signal + low)
    return (rng.random(len(chance)) < chance).astype(int), chance


CLASSES = ("north", "east", "south", "west")
FLAGS = ("absent", "present")


def _multiclass(rng: Rng, signals: Signals) -> tuple[NDArray[np.generic], Array]:
    logits = rng.uniform(2.0, 3.5) * np.stack([signals.draw() for _ in CLASSES], axis=1)
    chances = np.exp(logits - logits.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    codes = (rng.random((len(chances), 1)) > chances.cumsum(axis=1)[:, :-1]).sum(axis=1)
    return np.array(CLASSES)[codes], chances


def _label(rng: Rng, signals: Signals) -> tuple[NDArray[np.generic], Array]:
    sides, chances = _multiclass(rng, signals)
    return sides, chances.argmax(axis=1)[:, None].astype(float)


def _regression(rng: Rng, signals: Signals) -> tuple[NDArray[np.generic], Array]:
    scale, noise = rng.uniform(5, 50), rng.uniform(0.2, 0.5)
    mean = scale * (signals.draw() + rng.uniform(1, 4))
    return np.round(mean + scale * noise * rng.normal(size=len(mean)), 3), mean[:, None]


def _count(rng: Rng, signals: Signals) -> tuple[NDArray[np.generic], Array]:
    rate = np.exp(np.clip(rng.uniform(1.2, 2.2) + 0.8 * signals.draw(), None, 5.0))
    return rng.poisson(rate), best_count(rate)[:, None]


def best_count(rate: Array) -> Array:
    """What errs least in ln(1 + y) for counts of Poisson with these rates: exp(E ln(1 + y)) - 1, summed over counts."""
    from scipy.stats import poisson

    counts = np.arange(int(rate.max() + 12 * np.sqrt(rate.max()) + 10))
    parts = np.array_split(rate, max(1, len(rate) // 2000))  # a table of rates and counts at a time
    return np.expm1(np.concatenate([poisson.pmf(counts, part[:, None]) @ np.log1p(counts) for part in parts]))


LAWS: dict[str, Law] = {
    "binary": Law("auc", _binary, "Predict which of two things happens.", "1 if it happened, else 0"),
    "rare": Law("average_precision", _rare, "Predict what seldom happens.", "1 if it happened, else 0"),
    "multiclass": Law("logloss", _multiclass, "Predict the side of each thing.", ", ".join(CLASSES), CLASSES),
    "regression": Law("rmse", _regression, "Predict how large a thing is.", "its size"),
    "count": Law("rmsle", _count, "Predict how often a thing happens.", "a count, never negative"),
    "label": Law("accuracy", _label, "Predict on which side each thing is.", ", ".join(CLASSES), CLASSES),
    "flag": Law("f1", _flag, "Predict where something is.", "present or absent; F1 is that of present", FLAGS),
}


def world(kind: str, seed: int, rows: int = TRAIN_ROWS + TEST_ROWS, draw: int = 0) -> World:
    """A table of `rows` with what its law predicts. `draw` numbers the laws of one seed."""
    rng = np.random.default_rng([seed, list(LAWS).index(kind), draw])
    signals = Signals(rng, rows)
    target, best = LAWS[kind].target(rng, signals)
    return World(signals.features().assign(y=target), best)


def synthetic_folder(name: str, root: Path = MADE_DIR) -> Path:
    """The folder of the task `name`, KIND-SEED, made below `root` if it is not there.

    Raises WorkbenchError for a name that is not one of a kind and a seed, or when `root` cannot be written.
    """
    match = re.fullmatch(r"([a-z]+)-(0|[1-9]\d{0,8})", name)
    if match is None or match[1] not in LAWS:
        raise WorkbenchError(
            f"'{SYNTHETIC}{name}' is no synthetic task: expected {SYNTHETIC}KIND-SEED, KIND one of {', '.join(LAWS)}, "
            f"for example {SYNTHETIC}binary-7."
        )
    folder = root / f"synthetic-{name}"
    if folder.is_dir():
        return folder
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=root) as scratch:
            made = make_task(match[1], int(match[2]), Path(scratch) / folder.name)
            try:
                os.rename(made.folder, folder)
            except OSError:
                if not folder.is_dir():  # else another process made the same files meanwhile
                    raise
    except OSError as error:
        raise WorkbenchError(f"'{folder}' cannot be written ({error.strerror}): make room there.") from None
    return folder


def make_task(kind: str, seed: int, folder: Path) -> MleTask:
    """Write the task folder of a kind and a seed, with the ceiling in its config.yaml, and load it.

    Raises WorkbenchError when no law of this seed gives a board that passes the gates.
    """
    reason: str | None = None
    for draw in range(DRAWS):
        drawn = world(kind, seed, draw=draw)
        ids = pd.Series(np.random.default_rng([seed, 5]).permutation(len(drawn.table)) + 10_000)
        task = build_task(_blueprint(kind, seed), drawn.table, folder, keys=Keys(ids=ids), entries=ENTRIES)
        task = _with_ceiling(task, dict(zip(map(canonical_id, map(str, ids)), drawn.best, strict=True)))
        reason = weak_board(task)
        if reason is None:
            return task
    why = str(reason).rstrip(".")
    raise WorkbenchError(f"'{SYNTHETIC}{kind}-{seed}' has no law with a sound board ({why}): take another seed.")


def _blueprint(kind: str, seed: int) -> Blueprint:
    law = LAWS[kind]
    return Blueprint(
        id=f"synthetic-{kind}-{seed}",
        metric=law.metric,
        id_column="row_id",
        train_target="y",
        seed=seed,
        summary=law.summary,
        row="a thing with its traits f01, f02 and so on",
        target=law.meaning,
        source=f"drawn from a known law: {SYNTHETIC}{kind}-{seed}",
        licence="CC0-1.0",
        note="Some traits say nothing, and only these may be blank.",
        classes=law.classes,
        train_rows=TRAIN_ROWS,
        test_rows=TEST_ROWS,
    )


def _with_ceiling(task: MleTask, best: dict[str, Array]) -> MleTask:
    """The task with what the law scores on its rows written into config.yaml; `best`: id -> prediction."""
    values = np.array([best[row] for row in answers(task).form.rows])
    data = submission_bytes(task, values)
    path = task.folder / "config.yaml"
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    config["ceiling"] = {split: grade(task, data, split).score for split in SPLITS}
    path.write_text(yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=1000), encoding="utf-8")
    return load_task(task.folder)
