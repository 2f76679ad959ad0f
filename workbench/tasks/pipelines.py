"""The population of reference pipelines behind a task's leaderboard: no people, so ranks on it are not human ranks.

Drawn with a fixed seed in five strata, like a real board: a few trivial entries, many defaults, some tuned ones, and a
top of ensembles with features made for the task. Each is fitted on train.csv only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from workbench.tasks.features import EXPERT_FEATURES

Array = NDArray[np.float64]

STRATA: dict[str, float] = {"trivial": 0.10, "default": 0.25, "standard": 0.35, "tuned": 0.20, "expert": 0.10}
"""Share of the board per stratum."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One entry to be fitted."""

    name: str
    stratum: str
    model: Any
    """A scikit-learn estimator, or None for a constant."""
    encoding: str = "onehot"
    """How text becomes numbers: `onehot`, `ordinal` or `none` (text columns are dropped)."""
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


def population(task_id: str, metric: str, columns: tuple[str, ...], seed: int) -> Iterator[Pipeline]:
    """An endless, seeded stream of pipelines per stratum, interleaved; the caller stops when its quotas are full."""
    rng = np.random.default_rng([seed, 7])
    makers = _regressors if metric in ("rmse", "rmsle", "mae") else _classifiers
    yield Pipeline("constant", "trivial", None)
    while True:
        for stratum in STRATA:
            if stratum == "trivial":
                yield _trivial(metric, columns, rng)
            elif stratum == "expert":
                yield _expert(task_id, metric, rng)
            else:
                name, model = makers(stratum, metric, rng)
                yield _dress(name, stratum, model, metric, rng)


def _pick(rng: np.random.Generator, *options: Any) -> Any:
    return options[int(rng.integers(len(options)))]


def _trivial(metric: str, columns: tuple[str, ...], rng: np.random.Generator) -> Pipeline:
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

    chosen = (str(_pick(rng, *columns)),)
    depth = int(rng.integers(1, 4))
    tree = DecisionTreeRegressor if metric in ("rmse", "rmsle", "mae") else DecisionTreeClassifier
    model = tree(max_depth=depth, random_state=0)
    return Pipeline(f"one column {chosen[0]}, tree depth {depth}", "trivial", model, "ordinal", columns=chosen)


def _dress(name: str, stratum: str, model: Any, metric: str, rng: np.random.Generator) -> Pipeline:
    """Preprocessing drawn around a model."""
    encoding = str(_pick(rng, "onehot", "onehot", "ordinal", "none" if stratum != "tuned" else "ordinal"))
    imputer = str(_pick(rng, "median", "mean", "constant", "indicator"))
    log_target = metric == "rmsle" and bool(rng.random() < {"default": 0.3, "standard": 0.5}.get(stratum, 0.9))
    cut = metric == "f1" and stratum == "tuned" and bool(rng.random() < 0.5)
    label = f"{name}, {encoding}, {imputer}" + (", log target" if log_target else "") + (", tuned cut" if cut else "")
    scale = "tree" not in name and "forest" not in name
    return Pipeline(label, stratum, model, encoding, imputer, scale, None, log_target, cut)


def _classifiers(stratum: str, metric: str, rng: np.random.Generator) -> tuple[str, Any]:
    from sklearn import ensemble, linear_model, naive_bayes, neighbors, svm, tree
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.kernel_approximation import Nystroem
    from sklearn.pipeline import make_pipeline

    balanced = _pick(rng, None, "balanced") if metric == "f1" else None
    seed = int(rng.integers(1_000_000))
    if stratum == "default":
        neighbours, depth, c = (
            int(rng.integers(3, 40)),
            _pick(rng, None, 3, 4, 5, 6, 8, 10),
            _pick(rng, 0.01, 0.1, 1.0, 10.0),
        )
        return _pick(
            rng,
            (f"logistic C={c}", linear_model.LogisticRegression(C=c, max_iter=2000, class_weight=balanced)),
            (f"{neighbours} neighbours", neighbors.KNeighborsClassifier(neighbours)),
            (
                f"tree depth {depth}",
                tree.DecisionTreeClassifier(max_depth=depth, random_state=seed, class_weight=balanced),
            ),
            ("naive Bayes", naive_bayes.GaussianNB(var_smoothing=float(_pick(rng, 1e-9, 1e-3, 1e-1)))),
            ("discriminant", LinearDiscriminantAnalysis(solver="lsqr", shrinkage=float(rng.uniform(0.01, 0.6)))),
        )
    if stratum == "standard":
        trees = int(_pick(rng, 30, 50, 100))
        kernel = make_pipeline(
            Nystroem(gamma=float(rng.uniform(0.01, 0.08)), n_components=150, random_state=seed),
            linear_model.LogisticRegression(max_iter=2000, class_weight=balanced),
        )
        options = [
            (f"forest of {trees}", ensemble.RandomForestClassifier(trees, random_state=seed, class_weight=balanced)),
            (
                f"extra forest of {trees}",
                ensemble.ExtraTreesClassifier(trees, random_state=seed, class_weight=balanced),
            ),
            (f"boosted trees of {trees}", _boosted(rng, seed, trees, metric, tuned=False, classes=True)),
            ("kernel logistic", kernel),
            (f"bagged trees of {trees // 3}", ensemble.BaggingClassifier(n_estimators=trees // 3, random_state=seed)),
        ]
        if metric not in ("auc", "logloss"):
            options.append(("support vectors", svm.SVC(C=float(_pick(rng, 0.3, 1, 3)), class_weight=balanced)))
        return _pick(rng, *options)
    leaf, share = int(rng.integers(2, 12)), float(_pick(rng, 0.3, 0.5, 0.8))
    settings = {"min_samples_leaf": leaf, "max_features": share, "random_state": seed, "class_weight": balanced}
    return _pick(
        rng,
        (f"forest leaf {leaf} share {share}", ensemble.RandomForestClassifier(120, **settings)),
        (f"extra forest leaf {leaf} share {share}", ensemble.ExtraTreesClassifier(120, **settings)),
        ("boosted trees, tuned", _boosted(rng, seed, int(_pick(rng, 60, 100, 140)), metric, tuned=True, classes=True)),
        (
            "logistic on splines",
            _splines(linear_model.LogisticRegression(C=float(_pick(rng, 0.1, 0.3, 1)), max_iter=3000)),
        ),
    )


def _regressors(stratum: str, metric: str, rng: np.random.Generator) -> tuple[str, Any]:
    from sklearn import ensemble, linear_model, neighbors, svm, tree

    seed = int(rng.integers(1_000_000))
    if stratum == "default":
        neighbours, depth = int(rng.integers(2, 30)), _pick(rng, None, 3, 4, 5, 6, 8, 10)
        alpha = float(_pick(rng, 0.01, 0.1, 1.0, 10.0, 100.0))
        return _pick(
            rng,
            (f"ridge {alpha}", linear_model.Ridge(alpha)),
            (f"Huber {alpha}", linear_model.HuberRegressor(alpha=alpha, max_iter=2000, tol=1e-3)),
            (f"{neighbours} neighbours", neighbors.KNeighborsRegressor(neighbours)),
            (f"{neighbours} weighted neighbours", neighbors.KNeighborsRegressor(neighbours, weights="distance")),
            (f"tree depth {depth}", tree.DecisionTreeRegressor(max_depth=depth, random_state=seed)),
        )
    if stratum == "standard":
        trees = int(_pick(rng, 20, 40, 60))
        c = float(_pick(rng, 1.0, 10.0, 100.0))
        return _pick(
            rng,
            (f"forest of {trees}", ensemble.RandomForestRegressor(trees, random_state=seed)),
            (f"extra forest of {trees}", ensemble.ExtraTreesRegressor(trees, random_state=seed)),
            (f"boosted trees of {trees}", _boosted(rng, seed, trees, metric, tuned=False, classes=False)),
            (f"bagged trees of {trees // 2}", ensemble.BaggingRegressor(n_estimators=trees // 2, random_state=seed)),
            (f"support vectors C={c}", _standard_target(svm.SVR(C=c))),
        )
    leaf, share = int(rng.integers(1, 8)), float(_pick(rng, 0.3, 0.5, 0.8))
    settings = {"min_samples_leaf": leaf, "max_features": share, "random_state": seed}
    return _pick(
        rng,
        (f"forest leaf {leaf} share {share}", ensemble.RandomForestRegressor(80, **settings)),
        (f"extra forest leaf {leaf} share {share}", ensemble.ExtraTreesRegressor(80, **settings)),
        (
            "boosted trees, tuned",
            _boosted(rng, seed, int(_pick(rng, 100, 150, 200)), metric, tuned=True, classes=False),
        ),
        ("ridge on splines", _splines(linear_model.Ridge(float(_pick(rng, 0.1, 1.0, 3.0))))),
    )


def _boosted(rng: np.random.Generator, seed: int, rounds: int, metric: str, *, tuned: bool, classes: bool) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    settings: dict[str, Any] = {"max_iter": rounds, "random_state": seed, "early_stopping": False}
    if tuned:
        settings |= {
            "learning_rate": float(_pick(rng, 0.04, 0.06, 0.08)),
            "max_leaf_nodes": int(_pick(rng, 6, 8, 12, 16)),
            "min_samples_leaf": int(_pick(rng, 5, 10, 20)),
            "l2_regularization": float(_pick(rng, 0.0, 1.0, 5.0)),
            "max_features": float(_pick(rng, 0.4, 0.7, 1.0)),
        }
    if classes:
        return HistGradientBoostingClassifier(**settings)
    loss = "absolute_error" if metric == "mae" and tuned else "squared_error"
    return HistGradientBoostingRegressor(loss=loss, **settings)


def _splines(model: Any) -> Any:
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import SplineTransformer, StandardScaler

    return make_pipeline(SplineTransformer(n_knots=4, degree=2, knots="uniform"), StandardScaler(), model)


def _standard_target(model: Any) -> Any:
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.preprocessing import StandardScaler

    return TransformedTargetRegressor(model, transformer=StandardScaler())


def _expert(task_id: str, metric: str, rng: np.random.Generator) -> Pipeline:
    """A weighted vote of tuned models on the task's own features, with the target and cuts that fit the metric."""
    from sklearn import ensemble, linear_model

    seed = int(rng.integers(1_000_000))
    grades = metric == "qwk"
    regression = metric in ("rmse", "rmsle", "mae") or grades
    boosted = [
        (f"b{k}", _boosted(rng, seed + k, int(_pick(rng, 120, 160)), metric, tuned=True, classes=not regression))
        for k in range(2)
    ]
    weights = [2.0, 2.0, float(_pick(rng, 0.5, 1.0, 1.5)), float(_pick(rng, 0.3, 0.6))]
    if regression:
        forest = ensemble.ExtraTreesRegressor(80, min_samples_leaf=2, max_features=0.6, random_state=seed)
        plain = _splines(linear_model.Ridge(1.0))
        model = ensemble.VotingRegressor([*boosted, ("forest", forest), ("plain", plain)], weights=weights)
    else:
        forest = ensemble.ExtraTreesClassifier(150, min_samples_leaf=2, max_features=0.6, random_state=seed)
        plain = _splines(linear_model.LogisticRegression(C=0.3, max_iter=3000))
        members = [*boosted, ("forest", forest), ("plain", plain)]
        model = ensemble.VotingClassifier(members, voting="soft", weights=weights)
    return Pipeline(
        f"vote {'/'.join(f'{w:g}' for w in weights)} #{seed}",
        "expert",
        model,
        imputer=str(_pick(rng, "median", "indicator")),
        log_target=metric in ("rmsle", "mae"),
        tune_cut=metric in ("f1", "qwk"),
        numeric_grades=grades,
        features=task_id in EXPERT_FEATURES,
    )


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
    if metric in ("auc", "logloss"):
        probabilities = np.asarray(model.fit(train, target.astype(int)).predict_proba(test))
        return probabilities[:, 1:2] if metric == "auc" else probabilities
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
    if metric == "auc":
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
    parts: list[tuple[str, Any, list[str]]] = [("numbers", Chain(steps), numbers)] if numbers else []
    if texts and (pipeline.encoding != "none" or not numbers):
        if pipeline.encoding == "ordinal":
            encoder = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1, encoded_missing_value=-2)
        else:
            encoder = OneHotEncoder(handle_unknown="ignore", min_frequency=5, sparse_output=False)
        parts.append(("texts", encoder, texts))
    return Chain([("columns", ColumnTransformer(parts)), ("model", pipeline.model)])


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
