"""One reference pipeline: how text, gaps and target are treated around a model, and how it predicts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from workbench.tasks.features import EXPERT_FEATURES
from workbench.tasks.metrics import BINARY

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One entry to be fitted."""

    name: str
    stratum: str
    model: Any
    """A scikit-learn estimator, or None for a constant."""
    encoding: str = "onehot"
    """How text becomes numbers: `onehot`, `ordinal` or `none` (text columns are dropped). Columns of sentences become
    weights of their words, with `ordinal` those of their pieces of two to four letters."""
    imputer: str = "median"
    """`median`, `mean`, `constant` (-1), or `indicator` (median, and a column that marks the gaps)."""
    scale: bool = True
    columns: tuple[str, ...] | None = None
    """Features used; None: all."""
    log_target: bool = False
    tune_cut: bool = False
    """Choose the decision threshold (f1) or the cuts between grades (qwk) by cross-validation."""
    numeric_grades: bool = False
    """Fit a regression of the grades (qwk)."""
    features: bool = False
    """Add the task's hand-written features."""


def predict(
    pipeline: Pipeline, task_id: str, metric: str, train: pd.DataFrame, target: Array, test: pd.DataFrame, classes: int
) -> Array:
    """Fit on `train` and predict `test`: [rows, 1], or [rows, classes] probabilities for `logloss`.

    `target` holds numbers or class codes 0 … classes - 1.
    """
    if pipeline.model is None:
        return np.repeat(constant(metric, target, classes)[None, :], len(test), axis=0)
    if pipeline.features:
        train, test = EXPERT_FEATURES[task_id](train.copy()), EXPERT_FEATURES[task_id](test.copy())
    if pipeline.columns:
        train, test = train[list(pipeline.columns)], test[list(pipeline.columns)]
    model = _assemble(pipeline, train)
    if metric in (*BINARY, "logloss"):
        probabilities = np.asarray(model.fit(train, target.astype(int)).predict_proba(test))
        return probabilities if metric == "logloss" else probabilities[:, 1:2]
    if metric == "f1" and pipeline.tune_cut:
        return _cut_f1(model, train, target, test)
    if metric == "qwk" and pipeline.numeric_grades:
        return _cut_grades(model, train, target, test, classes)
    if metric in ("qwk", "accuracy", "f1"):
        return np.asarray(model.fit(train, target.astype(int)).predict(test), dtype=float)[:, None]
    logs = pipeline.log_target and target.min() > -1
    values = model.fit(train, np.log1p(target) if logs else target).predict(test)
    values = np.expm1(values) if logs else np.asarray(values)
    return np.clip(values, 0.0 if metric == "rmsle" else -np.inf, None)[:, None]


def constant(metric: str, target: Array, classes: int) -> Array:
    """The best constant submission for these targets, [columns]: the floor of the reward scale."""
    if metric in BINARY:
        return np.array([0.5])
    if metric in ("rmse", "mae", "rmsle"):
        centres: dict[str, Callable[[Array], Any]] = {
            "rmse": np.mean,
            "mae": np.median,
            "rmsle": lambda y: np.expm1(np.mean(np.log1p(y))),
        }
        return np.array([float(centres[metric](target))])
    counts = np.bincount(target.astype(int), minlength=classes)
    if metric == "logloss":
        return counts / counts.sum()
    return np.array([1.0 if metric == "f1" else float(counts.argmax())])


def _assemble(pipeline: Pipeline, train: pd.DataFrame) -> Any:
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import Pipeline as Chain
    from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

    numbers = list(train.select_dtypes("number").columns)
    texts = [name for name in train.columns if name not in numbers]
    fill: dict[str, dict[str, Any]] = {
        "constant": {"strategy": "constant", "fill_value": -1},
        "mean": {"strategy": "mean"},
    }
    imputer = SimpleImputer(
        **fill.get(pipeline.imputer, {"strategy": "median"}), add_indicator=pipeline.imputer == "indicator"
    )
    steps: list[tuple[str, Any]] = [("impute", imputer)]
    if pipeline.scale:
        steps.append(("scale", StandardScaler()))
    parts: list[tuple[str, Any, list[str] | str]] = [("numbers", Chain(steps), numbers)] if numbers else []
    parts += [(name, _sentences(pipeline.encoding), name) for name in texts if is_prose(train[name])]
    texts = [name for name in texts if not is_prose(train[name])]
    if texts and (pipeline.encoding != "none" or not numbers):
        if pipeline.encoding == "ordinal":
            encoder = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1, encoded_missing_value=-2)
        else:
            encoder = OneHotEncoder(handle_unknown="ignore", min_frequency=5, sparse_output=False)
        parts.append(("texts", encoder, texts))
    return Chain([("columns", ColumnTransformer(parts, sparse_threshold=0)), ("model", pipeline.model)])


def is_prose(texts: pd.Series) -> bool:
    """Whether these are sentences, most of them different, rather than names of categories."""
    known = texts.dropna().astype(str)
    return known.nunique() > 0.5 * len(texts) and float(known.str.count(" ").median()) >= 3


def _sentences(encoding: str) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    if encoding == "ordinal":
        return TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), min_df=5, max_features=600, sublinear_tf=True)
    return TfidfVectorizer(min_df=3, max_features=400, sublinear_tf=True)


def _cut_f1(model: Any, train: pd.DataFrame, target: Array, test: pd.DataFrame) -> Array:
    """Labels by the threshold that gives the best F1 on cross-validated probabilities of train."""
    from sklearn.base import clone
    from sklearn.metrics import f1_score
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    truth = target.astype(int)
    folds = StratifiedKFold(4, shuffle=True, random_state=0)
    own = cross_val_predict(clone(model), train, truth, cv=folds, method="predict_proba")[:, 1]
    cuts = np.linspace(0.1, 0.7, 31)
    best = max(cuts, key=lambda cut: f1_score(truth, own > cut, zero_division=0.0))
    return (model.fit(train, truth).predict_proba(test)[:, 1] > best).astype(float)[:, None]


def _cut_grades(model: Any, train: pd.DataFrame, target: Array, test: pd.DataFrame, classes: int) -> Array:
    """Grades from a regression, with cuts moved one at a time to the best kappa on cross-validated values of train."""
    from sklearn.base import clone
    from sklearn.metrics import cohen_kappa_score
    from sklearn.model_selection import KFold, cross_val_predict

    own = cross_val_predict(clone(model), train, target, cv=KFold(4, shuffle=True, random_state=0))
    cuts = np.arange(classes - 1) + 0.5
    for _ in range(2):
        for place in range(classes - 1):
            options = [
                np.sort(np.r_[np.delete(cuts, place), cuts[place] + step]) for step in np.linspace(-0.3, 0.3, 13)
            ]
            cuts = max(options, key=lambda c: cohen_kappa_score(target, np.digitize(own, c), weights="quadratic"))
    return np.digitize(model.fit(train, target).predict(test), cuts).astype(float)[:, None]
