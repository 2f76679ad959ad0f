"""Metrics against values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
        # best guess first: positive, negative, positive, negative; precision 1 and 2/3 at the positives
        ("average_precision", column(1, 0, 1, 0), column(0.8, 0.5, 0.4, 0.1), (1 + 2 / 3) / 2),
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


numbers = st.floats(-1e6, 1e6)
PAIRS = st.integers(1, 40).flatmap(lambda n: st.tuples(*(st.lists(numbers, min_size=n, max_size=n),) * 2))
CODES = st.integers(4, 40).flatmap(lambda n: st.tuples(*(st.lists(st.integers(0, 3), min_size=n, max_size=n),) * 2))


@given(PAIRS)
def test_distances_are_their_formulas(pair: tuple[list[float], list[float]]) -> None:
    truth, predicted = map(np.array, pair)
    gap = truth - predicted
    assert METRICS["rmse"].score(column(*truth), column(*predicted)) == pytest.approx(np.sqrt(np.mean(gap**2)))
    assert METRICS["mae"].score(column(*truth), column(*predicted)) == pytest.approx(np.mean(np.abs(gap)))
    truth, predicted = np.abs(truth), np.abs(predicted)
    log_gap = np.log1p(truth) - np.log1p(predicted)
    assert METRICS["rmsle"].score(column(*truth), column(*predicted)) == pytest.approx(np.sqrt(np.mean(log_gap**2)))


@given(CODES)
def test_agreements_are_their_formulas(pair: tuple[list[int], list[int]]) -> None:
    truth, predicted = map(np.array, pair)
    assert METRICS["accuracy"].score(column(*truth), column(*predicted)) == pytest.approx(np.mean(truth == predicted))
    hits = int(np.sum((truth > 1) & (predicted > 1)))
    wrong = int(np.sum((truth > 1) != (predicted > 1)))
    f1 = 2 * hits / (2 * hits + wrong) if hits + wrong else 0.0
    assert METRICS["f1"].score(column(*(truth > 1)), column(*(predicted > 1))) == pytest.approx(f1)
    by_chance = np.mean((truth[:, None] - predicted[None, :]) ** 2)
    if by_chance > 0:
        kappa = 1 - np.mean((truth - predicted) ** 2) / by_chance
        assert METRICS["qwk"].score(column(*truth), column(*predicted)) == pytest.approx(kappa, abs=1e-12)


@given(st.lists(st.sampled_from([0.0, 0.2, 0.5, 0.50001, 1.0]), min_size=2, max_size=40), st.data())
def test_auc_counts_the_pairs_in_order(predicted: list[float], data: st.DataObject) -> None:
    positives = data.draw(st.integers(1, len(predicted) - 1))
    above = [p > q for p in predicted[:positives] for q in predicted[positives:]]
    equal = [p == q for p in predicted[:positives] for q in predicted[positives:]]
    truth = column(*([1] * positives + [0] * (len(predicted) - positives)))
    assert METRICS["auc"].score(truth, column(*predicted)) == pytest.approx(np.mean(above) + 0.5 * np.mean(equal))


@given(st.integers(2, 5), st.lists(st.integers(0, 4), min_size=1, max_size=30), st.integers(0, 99))
def test_logloss_is_the_mean_surprise(classes: int, codes: list[int], seed: int) -> None:
    truth = np.eye(classes)[[code % classes for code in codes]]
    predicted = np.random.default_rng(seed).dirichlet(np.ones(classes), len(codes))
    surprise = -np.log((truth * predicted).sum(axis=1))
    assert METRICS["logloss"].score(truth, predicted) == pytest.approx(surprise.mean(), rel=1e-9)


def test_labels_of_scikit_learn_give_the_same_scores() -> None:
    from sklearn.metrics import cohen_kappa_score, f1_score

    truth, predicted = ["no", "yes", "yes", "no", "yes"], ["no", "yes", "no", "yes", "yes"]
    codes = [column(*(float(label == "yes") for label in labels)) for labels in (truth, predicted)]
    assert METRICS["f1"].score(*codes) == pytest.approx(f1_score(truth, predicted, pos_label="yes"))
    truth, predicted = [1, 2, 4, 3, 4, 1], [1, 3, 3, 3, 1, 1]
    codes = [column(*(grade - 1.0 for grade in grades)) for grades in (truth, predicted)]
    assert METRICS["qwk"].score(*codes) == pytest.approx(cohen_kappa_score(truth, predicted, weights="quadratic"))


@pytest.mark.parametrize("name", [name for name, metric in METRICS.items() if metric.wants == "label"])
def test_one_and_the_same_label_is_scored_without_a_warning(name: str) -> None:
    score = METRICS[name].score(column(0, 1, 1), column(0, 0, 0))
    assert math.isfinite(score)
    assert METRICS[name].score(column(1, 1, 1), column(1, 1, 1)) == 1.0
