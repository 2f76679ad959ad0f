"""The metrics of the embedded tasks, computed by scikit-learn.

A metric sees two tables of equal shape, one row per id. For labels they hold class codes (0, 1, … in the order of the
task's `classes`), for `logloss` one column per class (the truth one-hot), otherwise numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

Table: TypeAlias = "pd.DataFrame | NDArray[np.float64]"
Wants = Literal["probability", "label", "number"]


@dataclass(frozen=True, slots=True)
class Metric:
    """How submissions are scored."""

    name: str
    higher_is_better: bool
    perfect: float
    """Score of the true answers."""
    score: Callable[[Table, Table], float]
    """(y_true, y_pred), both [rows, columns] -> score, not rounded."""
    wants: Wants
    minimum: float = -np.inf
    """Smallest number accepted in a submission."""
    maximum: float = np.inf
    """Largest number accepted in a submission."""


def _column(table: Table) -> NDArray[np.float64]:
    values = np.asarray(table, dtype=np.float64)
    return values.reshape(len(values), -1)[:, 0]


def _codes(table: Table) -> NDArray[np.int64]:
    return _column(table).astype(np.int64)


def _auc(y_true: Table, y_pred: Table) -> float:
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(_codes(y_true), _column(y_pred)))


def _average_precision(y_true: Table, y_pred: Table) -> float:
    """Mean precision at the places of the positives, best guess first: Σ (recall step) · precision."""
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(_codes(y_true), _column(y_pred)))


def _logloss(y_true: Table, y_pred: Table) -> float:
    """Mean of -ln p(true class); rows are rescaled to sum 1 and p is kept in [1e-15, 1 - 1e-15], as on Kaggle."""
    from sklearn.metrics import log_loss

    truth = np.asarray(y_true, dtype=np.float64)
    predicted = np.asarray(y_pred, dtype=np.float64)
    predicted = np.clip(predicted / predicted.sum(axis=1, keepdims=True), 1e-15, 1 - 1e-15)
    predicted /= predicted.sum(axis=1, keepdims=True)
    return float(log_loss(truth.argmax(axis=1), predicted, labels=np.arange(truth.shape[1])))


def _qwk(y_true: Table, y_pred: Table) -> float:
    """Cohen's kappa with quadratic weights over class codes; 0 where it is undefined (one and the same class)."""
    from sklearn.metrics import cohen_kappa_score

    truth, predicted = _codes(y_true), _codes(y_pred)
    if np.array_equal(truth, predicted):
        return 1.0
    labels = np.arange(max(truth.max(), predicted.max()) + 1)  # a grade that nobody says still counts as a step
    return float(cohen_kappa_score(truth, predicted, labels=labels, weights="quadratic"))


def _rmse(y_true: Table, y_pred: Table) -> float:
    from sklearn.metrics import root_mean_squared_error

    return float(root_mean_squared_error(_column(y_true), _column(y_pred)))


def _rmsle(y_true: Table, y_pred: Table) -> float:
    from sklearn.metrics import root_mean_squared_log_error

    return float(root_mean_squared_log_error(_column(y_true), _column(y_pred)))


def _mae(y_true: Table, y_pred: Table) -> float:
    from sklearn.metrics import mean_absolute_error

    return float(mean_absolute_error(_column(y_true), _column(y_pred)))


def _accuracy(y_true: Table, y_pred: Table) -> float:
    from sklearn.metrics import accuracy_score

    return float(accuracy_score(_codes(y_true), _codes(y_pred)))


def _f1(y_true: Table, y_pred: Table) -> float:
    """F1 of code 1, the second class; 0 when nothing is predicted positive."""
    from sklearn.metrics import f1_score

    return float(f1_score(_codes(y_true), _codes(y_pred), zero_division=0.0))


LARGEST = 1e100
"""Numbers beyond it are refused, so that no square overflows."""

METRICS: dict[str, Metric] = {
    "auc": Metric("auc", True, 1.0, _auc, "probability", 0.0, 1.0),
    "average_precision": Metric("average_precision", True, 1.0, _average_precision, "probability", 0.0, 1.0),
    "logloss": Metric("logloss", False, 0.0, _logloss, "probability", 0.0, 1.0),
    "qwk": Metric("qwk", True, 1.0, _qwk, "label"),
    "rmse": Metric("rmse", False, 0.0, _rmse, "number", -LARGEST, LARGEST),
    "rmsle": Metric("rmsle", False, 0.0, _rmsle, "number", 0.0, LARGEST),
    "mae": Metric("mae", False, 0.0, _mae, "number", -LARGEST, LARGEST),
    "accuracy": Metric("accuracy", True, 1.0, _accuracy, "label"),
    "f1": Metric("f1", True, 1.0, _f1, "label"),
}
BINARY = ("auc", "average_precision")
"""Metrics of one probability per row, that of class 1, for targets 0 and 1."""
