"""Metrics against values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from workbench.tasks.metrics import METRICS


def column(*values: float) -> np.ndarray:
    return np.array(values, dtype=float).reshape(-1, 1)


@pytest.mark.parametrize(
    ("name", "truth", "predicted", "score"),
    [
        ("rmse", column(1, 2, 3), column(1, 2, 6), math.sqrt(3)),
        ("mae", column(1, 2, 3), column(1, 0, 4), 1.0),
        ("rmsle", column(0, math.e - 1), column(0, 0), math.sqrt(0.5)),
        ("accuracy", column(0, 1, 2, 2), column(0, 1, 1, 2), 0.75),
        # 1 true positive, 1 false positive, 1 false negative of class 1
        ("f1", column(1, 0, 1, 0), column(1, 1, 0, 0), 0.5),
        # pairs (positive, negative): 0.8 > 0.1, 0.8 > 0.4, 0.4 = 0.4 counts half, 0.4 > 0.1
        ("auc", column(1, 0, 1, 0), column(0.8, 0.1, 0.4, 0.4), 3.5 / 4),
        # one of four is wrong by 2: observed 4 / 4; by chance Σ (i - j)² = 5 + 3 + 9 + 9 over 16 pairs
        ("qwk", column(0, 1, 2, 2), column(0, 1, 2, 0), 1 - 1 / (26 / 16)),
    ],
)
def test_scores_by_hand(name: str, truth: np.ndarray, predicted: np.ndarray, score: float) -> None:
    assert METRICS[name].score(truth, predicted) == pytest.approx(score, abs=1e-12)


def test_logloss_by_hand() -> None:
    truth = np.array([[1.0, 0.0], [0.0, 1.0]])
    predicted = np.array([[0.8, 0.2], [0.5, 0.5]])
    expected = -(math.log(0.8) + math.log(0.5)) / 2
    assert METRICS["logloss"].score(truth, predicted) == pytest.approx(expected, abs=1e-12)


def test_a_certain_and_wrong_probability_stays_finite() -> None:
    truth = np.array([[1.0, 0.0], [0.0, 1.0]])
    assert math.isfinite(METRICS["logloss"].score(truth, 1 - truth))


@pytest.mark.parametrize("name", list(METRICS))
def test_the_truth_scores_perfectly(name: str) -> None:
    metric = METRICS[name]
    truth = np.eye(2)[[0, 1, 1, 0]] if name == "logloss" else column(0, 1, 1, 0)
    assert metric.score(truth, truth) == pytest.approx(metric.perfect, abs=1e-9)
