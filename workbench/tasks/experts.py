"""Models by hand for the expert pipelines of the embedded tasks where the usual vote is not what fits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from workbench.tasks.models import boosted, pick, splines, standard_target

Members: TypeAlias = tuple[list[tuple[str, Any]], list[float]]
"""Named estimators of a vote, and their weights."""


def _leaves(rng: np.random.Generator, seed: int) -> Members:
    """Linear boundaries beside forests: 32 classes with some forty rows each are few for trees alone."""
    from sklearn import ensemble, linear_model
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import PowerTransformer

    logistic = linear_model.LogisticRegression(C=float(pick(rng, 2.0, 5.0, 10.0)), max_iter=3000)
    members = [
        ("logistic", make_pipeline(PowerTransformer(), logistic)),
        ("discriminant", LinearDiscriminantAnalysis(solver="lsqr", shrinkage=float(pick(rng, 0.02, 0.05, 0.1)))),
        ("forest", ensemble.ExtraTreesClassifier(200, max_features=float(pick(rng, 0.3, 0.6)), random_state=seed)),
    ]
    return members, [2.0, 1.0, float(pick(rng, 1.0, 2.0))]


def _spectra(rng: np.random.Generator, seed: int) -> Members:
    """Few directions of many channels, on spectra whose level and slope were taken out."""
    from sklearn import linear_model
    from sklearn.cross_decomposition import PLSRegression

    members: list[tuple[str, Any]] = [
        (f"pls{count}", PLSRegression(count)) for count in (int(pick(rng, 10, 12)), int(pick(rng, 14, 16, 18)))
    ]
    members.append(("ridge", linear_model.Ridge(float(pick(rng, 0.1, 0.3, 1.0)))))
    return members, [1.0, 1.0, float(pick(rng, 1.0, 2.0))]


def _words(rng: np.random.Generator, seed: int) -> Members:
    """Linear models on the weights of words, trees on the counts of good and bad ones."""
    from sklearn import linear_model, svm

    trees = boosted(rng, seed, int(pick(rng, 80, 120)), "mae", tuned=True, classes=False)
    members = [
        ("ridge", linear_model.Ridge(float(pick(rng, 3.0, 10.0)))),
        ("vectors", standard_target(svm.SVR(C=float(pick(rng, 0.3, 1.0)), gamma="scale"))),
        ("trees", trees),
    ]
    return members, [1.0, float(pick(rng, 1.0, 2.0)), 2.0]


def _cancelled(rng: np.random.Generator, seed: int) -> Members:
    """Few flights are cancelled: a hundred cases carry a linear model further than trees."""
    from sklearn import ensemble, linear_model

    plain, curbed = (linear_model.LogisticRegression(C=float(c), max_iter=3000) for c in (0.1, pick(rng, 0.03, 0.3)))
    forest = ensemble.ExtraTreesClassifier(
        200, min_samples_leaf=int(pick(rng, 4, 6)), max_features=0.3, random_state=seed
    )
    return [("plain", plain), ("curbed", curbed), ("forest", forest)], [1.0, 1.0, float(pick(rng, 0.7, 1.0, 1.5))]


def _voters(rng: np.random.Generator, seed: int) -> Members:
    """Few interviews and noisy answers: smooth models of the grade as a number."""
    from sklearn import ensemble, linear_model

    forest = ensemble.ExtraTreesRegressor(
        150, min_samples_leaf=int(pick(rng, 3, 4, 6)), max_features=float(pick(rng, 0.4, 0.6)), random_state=seed
    )
    members = [
        ("linear", linear_model.BayesianRidge()),
        ("smooth", splines(linear_model.Ridge(float(pick(rng, 10.0, 30.0))))),
        ("forest", forest),
    ]
    return members, [2.0, 1.0, float(pick(rng, 1.0, 2.0))]


EXPERT_MODELS: dict[str, Callable[[np.random.Generator, int], Members]] = {
    "cancelled-flights": _cancelled,
    "leaf-shape": _leaves,
    "meat-spectra": _spectra,
    "party-scale": _voters,
    "tweet-valence": _words,
}
"""Task id -> (random numbers, seed) -> the members of an expert's vote."""
