"""Models of the reference pipelines, drawn with their settings."""

from __future__ import annotations

from typing import Any

import numpy as np

from workbench.tasks.metrics import METRICS

MANY_CLASSES = 10
"""With more of them boosted trees, one set per class, take too long."""
Options = list[tuple[str, Any]]


def pick(rng: np.random.Generator, *options: Any) -> Any:
    """One of the options."""
    return options[int(rng.integers(len(options)))]


def classifiers(stratum: str, metric: str, rng: np.random.Generator, classes: int) -> tuple[str, Any]:
    """A name and a classifier of this stratum."""
    balanced = pick(rng, None, "balanced") if metric == "f1" else None
    seed = int(rng.integers(1_000_000))
    makers = {"default": _default_classifiers, "standard": _standard_classifiers}
    options = makers.get(stratum, _tuned_classifiers)(metric, rng, seed, balanced)
    return pick(rng, *(option for option in options if classes <= MANY_CLASSES or not option[0].startswith("boosted")))


def _default_classifiers(metric: str, rng: np.random.Generator, seed: int, balanced: str | None) -> Options:
    from sklearn import linear_model, naive_bayes, neighbors, tree
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    neighbours, depth, c = (
        int(rng.integers(3, 40)),
        pick(rng, None, 3, 4, 5, 6, 8, 10),
        pick(rng, 0.01, 0.1, 1.0, 10.0),
    )
    return [
        (f"logistic C={c}", linear_model.LogisticRegression(C=c, max_iter=2000, class_weight=balanced)),
        (f"{neighbours} neighbours", neighbors.KNeighborsClassifier(neighbours)),
        (
            f"tree depth {depth}",
            tree.DecisionTreeClassifier(max_depth=depth, random_state=seed, class_weight=balanced),
        ),
        ("naive Bayes", naive_bayes.GaussianNB(var_smoothing=float(pick(rng, 1e-9, 1e-3, 1e-1)))),
        ("discriminant", LinearDiscriminantAnalysis(solver="lsqr", shrinkage=float(rng.uniform(0.01, 0.6)))),
    ]


def _standard_classifiers(metric: str, rng: np.random.Generator, seed: int, balanced: str | None) -> Options:
    from sklearn import ensemble, linear_model, svm
    from sklearn.kernel_approximation import Nystroem
    from sklearn.pipeline import make_pipeline

    trees = int(pick(rng, 30, 50, 100))
    kernel = make_pipeline(
        Nystroem(gamma=float(rng.uniform(0.01, 0.08)), n_components=150, random_state=seed),
        linear_model.LogisticRegression(max_iter=2000, class_weight=balanced),
    )
    options = [
        (f"forest of {trees}", ensemble.RandomForestClassifier(trees, random_state=seed, class_weight=balanced)),
        (f"extra forest of {trees}", ensemble.ExtraTreesClassifier(trees, random_state=seed, class_weight=balanced)),
        (f"boosted trees of {trees}", boosted(rng, seed, trees, metric, tuned=False, classes=True)),
        ("kernel logistic", kernel),
        (f"bagged trees of {trees // 3}", ensemble.BaggingClassifier(n_estimators=trees // 3, random_state=seed)),
    ]
    if METRICS[metric].wants == "label":
        options.append(("support vectors", svm.SVC(C=float(pick(rng, 0.3, 1, 3)), class_weight=balanced)))
    return options


def _tuned_classifiers(metric: str, rng: np.random.Generator, seed: int, balanced: str | None) -> Options:
    from sklearn import ensemble, linear_model

    leaf, share = int(rng.integers(2, 12)), float(pick(rng, 0.3, 0.5, 0.8))
    settings = {"min_samples_leaf": leaf, "max_features": share, "random_state": seed, "class_weight": balanced}
    return [
        (f"forest leaf {leaf} share {share}", ensemble.RandomForestClassifier(120, **settings)),
        (f"extra forest leaf {leaf} share {share}", ensemble.ExtraTreesClassifier(120, **settings)),
        ("boosted trees, tuned", boosted(rng, seed, int(pick(rng, 60, 100, 140)), metric, tuned=True, classes=True)),
        (
            "logistic on splines",
            splines(linear_model.LogisticRegression(C=float(pick(rng, 0.1, 0.3, 1)), max_iter=3000)),
        ),
    ]


def regressors(stratum: str, metric: str, rng: np.random.Generator) -> tuple[str, Any]:
    """A name and a regression of this stratum."""
    from sklearn import ensemble, linear_model, neighbors, svm, tree

    seed = int(rng.integers(1_000_000))
    if stratum == "default":
        neighbours, depth = int(rng.integers(2, 30)), pick(rng, None, 3, 4, 5, 6, 8, 10)
        alpha = float(pick(rng, 0.01, 0.1, 1.0, 10.0, 100.0))
        return pick(
            rng,
            (f"ridge {alpha}", linear_model.Ridge(alpha)),
            (f"Huber {alpha}", linear_model.HuberRegressor(alpha=alpha, max_iter=2000, tol=1e-3)),
            (f"{neighbours} neighbours", neighbors.KNeighborsRegressor(neighbours)),
            (f"{neighbours} weighted neighbours", neighbors.KNeighborsRegressor(neighbours, weights="distance")),
            (f"tree depth {depth}", tree.DecisionTreeRegressor(max_depth=depth, random_state=seed)),
        )
    if stratum == "standard":
        trees = int(pick(rng, 20, 40, 60))
        c = float(pick(rng, 1.0, 10.0, 100.0))
        return pick(
            rng,
            (f"forest of {trees}", ensemble.RandomForestRegressor(trees, random_state=seed)),
            (f"extra forest of {trees}", ensemble.ExtraTreesRegressor(trees, random_state=seed)),
            (f"boosted trees of {trees}", boosted(rng, seed, trees, metric, tuned=False, classes=False)),
            (f"bagged trees of {trees // 2}", ensemble.BaggingRegressor(n_estimators=trees // 2, random_state=seed)),
            (f"support vectors C={c}", standard_target(svm.SVR(C=c))),
        )
    leaf, share = int(rng.integers(1, 8)), float(pick(rng, 0.3, 0.5, 0.8))
    settings = {"min_samples_leaf": leaf, "max_features": share, "random_state": seed}
    return pick(
        rng,
        (f"forest leaf {leaf} share {share}", ensemble.RandomForestRegressor(80, **settings)),
        (f"extra forest leaf {leaf} share {share}", ensemble.ExtraTreesRegressor(80, **settings)),
        (
            "boosted trees, tuned",
            boosted(rng, seed, int(pick(rng, 100, 150, 200)), metric, tuned=True, classes=False),
        ),
        ("ridge on splines", splines(linear_model.Ridge(float(pick(rng, 0.1, 1.0, 3.0))))),
    )


def boosted(rng: np.random.Generator, seed: int, rounds: int, metric: str, *, tuned: bool, classes: bool) -> Any:
    """Boosted trees on binned values; `tuned` draws their settings."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    settings: dict[str, Any] = {"max_iter": rounds, "random_state": seed, "early_stopping": False}
    if tuned:
        settings |= {
            "learning_rate": float(pick(rng, 0.04, 0.06, 0.08)),
            "max_leaf_nodes": int(pick(rng, 6, 8, 12, 16)),
            "min_samples_leaf": int(pick(rng, 5, 10, 20)),
            "l2_regularization": float(pick(rng, 0.0, 1.0, 5.0)),
            "max_features": float(pick(rng, 0.4, 0.7, 1.0)),
        }
    if classes:
        return HistGradientBoostingClassifier(**settings)
    loss = "absolute_error" if metric == "mae" and tuned else "squared_error"
    return HistGradientBoostingRegressor(loss=loss, **settings)


def splines(model: Any) -> Any:
    """The model on smooth functions of each column."""
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import SplineTransformer, StandardScaler

    return make_pipeline(SplineTransformer(n_knots=4, degree=2, knots="uniform"), StandardScaler(), model)


def standard_target(model: Any) -> Any:
    """The regression fitted to a target of mean 0 and deviation 1."""
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.preprocessing import StandardScaler

    return TransformedTargetRegressor(model, transformer=StandardScaler())
