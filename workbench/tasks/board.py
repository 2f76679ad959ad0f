"""Fit the reference pipelines of one task and rank them on its rows `final`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from workbench.tasks.metrics import Metric
from workbench.tasks.pipelines import Array, Pipeline, constant, predict
from workbench.tasks.population import STRATA, population
from workbench.types import WorkbenchError

ENTRIES = 80
"""Size of a board; below 100 the medals are the top 10, 20 and 40 %."""
BOOTSTRAPS = 300
TRIES = 4
"""Draws per wanted entry: one whose score is on the board already is drawn anew, until this many are used up."""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Trial:
    """The tables that the pipelines of one task are fitted and scored on."""

    task_id: str
    metric: Metric
    classes: int
    seed: int
    train: pd.DataFrame
    target: Array
    test: pd.DataFrame
    truth: Array
    """Numbers or class codes of the test rows."""
    reward: NDArray[np.bool_]
    """Which test rows belong to split `reward`."""

    def shaped(self, rows: NDArray[np.bool_]) -> Array:
        """The truth of some rows in the shape of a submission."""
        truth = self.truth[rows]
        return np.eye(self.classes)[truth.astype(int)] if self.metric.name == "logloss" else truth[:, None]

    def score(self, values: Array, rows: NDArray[np.bool_]) -> float:
        return round(self.metric.score(self.shaped(rows), values[rows]), 5)


@dataclass(frozen=True, slots=True)
class Entry:
    """A fitted pipeline with its predictions of all test rows."""

    score: float
    pipeline: Pipeline
    values: Array


def reference_board(
    trial: Trial, entries: int, progress: Progress
) -> tuple[pd.DataFrame, dict[str, float], dict[str, Any]]:
    """(board with rank, score, stratum, pipeline; constant score per split; the expert's lead over the default).

    Fitted with one thread, so that a rebuild gives the same scores up to rounding. Raises WorkbenchError when not even
    the simplest pipelines can be fitted.
    """
    from threadpoolctl import threadpool_limits

    dummy = {name: _floor(trial, rows) for name, rows in (("reward", trial.reward), ("final", ~trial.reward))}
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # convergence and one-class folds of weak pipelines are part of the board
        board = _entries(trial, entries, progress)
        lead = expert_lead(trial, board)
    table = pd.DataFrame(
        {
            "rank": range(1, len(board) + 1),
            "score": [entry.score for entry in board],
            "stratum": [entry.pipeline.stratum for entry in board],
            "pipeline": [entry.pipeline.name for entry in board],
        }
    )
    return table, dummy, lead


def _floor(trial: Trial, rows: NDArray[np.bool_]) -> float:
    """The best score of a constant on these rows, knowing them: no constant submission lies above the floor."""
    values = constant(trial.metric.name, trial.truth[rows], trial.classes)
    return round(trial.metric.score(trial.shaped(rows), np.repeat(values[None, :], int(rows.sum()), axis=0)), 5)


def _entries(trial: Trial, entries: int, progress: Progress) -> list[Entry]:
    """Pipelines until every stratum has its share, best first."""
    quotas = {name: max(1, round(share * entries)) for name, share in STRATA.items()}
    quotas["standard"] = max(1, quotas["standard"] + entries - sum(quotas.values()))
    left = {name: TRIES * quota for name, quota in quotas.items()}
    board: list[Entry] = []
    for pipeline in population(trial.task_id, trial.metric.name, tuple(trial.train.columns), trial.seed, trial.classes):
        stratum = pipeline.stratum
        if not any(quotas.values()):
            break
        if quotas[stratum] == 0:
            continue
        left[stratum] -= 1
        entry = _fit(trial, pipeline)
        fresh = entry is not None and entry.score not in {other.score for other in board}
        if entry is not None and (fresh or left[stratum] < quotas[stratum]):
            board.append(entry)
            quotas[stratum] -= 1
            progress(f"{trial.task_id}: {len(board)} of {entries} pipelines, {pipeline.name}: {entry.score}")
        elif left[stratum] < -quotas[stratum]:
            raise WorkbenchError(f"The {stratum} pipelines of '{trial.task_id}' cannot be fitted: check its table.")
    return sorted(board, key=lambda entry: entry.score, reverse=trial.metric.higher_is_better)


def _fit(trial: Trial, pipeline: Pipeline) -> Entry | None:
    """None when scikit-learn refuses this combination on this table."""
    try:
        values = predict(
            pipeline, trial.task_id, trial.metric.name, trial.train, trial.target, trial.test, trial.classes
        )
        return Entry(trial.score(values, ~trial.reward), pipeline, values)
    except ValueError:
        return None


def expert_lead(trial: Trial, board: list[Entry]) -> dict[str, Any]:
    """How far the middle expert pipeline is ahead of the middle default one, in paired standard errors.

    Paired bootstrap over the rows `final`: both are scored on the same resampled rows.
    """
    expert, default = (_middle(board, stratum) for stratum in ("expert", "default"))
    final = ~trial.reward
    truth, one, two = trial.shaped(final), expert.values[final], default.values[final]
    sign = 1 if trial.metric.higher_is_better else -1
    rng = np.random.default_rng([trial.seed, 3])
    gaps = []
    for _ in range(BOOTSTRAPS):
        rows = rng.integers(len(truth), size=len(truth))
        gaps.append(sign * (trial.metric.score(truth[rows], one[rows]) - trial.metric.score(truth[rows], two[rows])))
    gap = sign * (expert.score - default.score)
    return {
        "expert": expert.pipeline.name,
        "default": default.pipeline.name,
        "gap": round(gap, 5),
        "paired_se": round(float(np.std(gaps)), 5),
    }


def _middle(board: list[Entry], stratum: str) -> Entry:
    ranked = [entry for entry in board if entry.pipeline.stratum == stratum]
    return ranked[len(ranked) // 2]
