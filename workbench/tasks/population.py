"""The population of reference pipelines behind a task's leaderboard: no people, so ranks on it are not human ranks.

Drawn with a fixed seed in five strata, like a real board: a few trivial entries, many defaults, some tuned ones, and a
top of ensembles with features made for the task. Each is fitted on train.csv only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from workbench.tasks.experts import EXPERT_MODELS, Members
from workbench.tasks.features import EXPERT_FEATURES
from workbench.tasks.metrics import METRICS
from workbench.tasks.models import boosted, classifiers, pick, regressors, splines
from workbench.tasks.pipelines import Pipeline

STRATA: dict[str, float] = {"trivial": 0.10, "default": 0.25, "standard": 0.35, "tuned": 0.20, "expert": 0.10}
"""Share of the board per stratum."""


def population(task_id: str, metric: str, columns: tuple[str, ...], seed: int, classes: int) -> Iterator[Pipeline]:
    """An endless, seeded stream of pipelines per stratum, interleaved; the caller stops when its quotas are full."""
    rng = np.random.default_rng([seed, 7])
    numbers = METRICS[metric].wants == "number"
    yield Pipeline("constant", "trivial", None)
    while True:
        for stratum in STRATA:
            if stratum == "trivial":
                yield _trivial(numbers, columns, rng)
            elif stratum == "expert":
                yield _expert(task_id, metric, rng)
            else:
                draw = regressors(stratum, metric, rng) if numbers else classifiers(stratum, metric, rng, classes)
                yield _dress(*draw, stratum, metric, rng)


def _trivial(numbers: bool, columns: tuple[str, ...], rng: np.random.Generator) -> Pipeline:
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

    chosen = (str(pick(rng, *columns)),)
    depth = int(rng.integers(1, 4))
    tree = DecisionTreeRegressor if numbers else DecisionTreeClassifier
    model = tree(max_depth=depth, random_state=0)
    return Pipeline(f"one column {chosen[0]}, tree depth {depth}", "trivial", model, "ordinal", columns=chosen)


def _dress(name: str, model: Any, stratum: str, metric: str, rng: np.random.Generator) -> Pipeline:
    """Preprocessing drawn around a model."""
    encoding = str(pick(rng, "onehot", "onehot", "ordinal", "none" if stratum != "tuned" else "ordinal"))
    imputer = str(pick(rng, "median", "mean", "constant", "indicator"))
    log_target = metric == "rmsle" and bool(rng.random() < {"default": 0.3, "standard": 0.5}.get(stratum, 0.9))
    cut = metric == "f1" and stratum == "tuned" and bool(rng.random() < 0.5)
    label = f"{name}, {encoding}, {imputer}" + (", log target" if log_target else "") + (", tuned cut" if cut else "")
    scale = "tree" not in name and "forest" not in name
    return Pipeline(label, stratum, model, encoding, imputer, scale, None, log_target, cut)


def _expert(task_id: str, metric: str, rng: np.random.Generator) -> Pipeline:
    """A weighted vote of models on the task's own features, with the target and cuts that fit the metric."""
    from sklearn import ensemble

    seed = int(rng.integers(1_000_000))
    grades = metric == "qwk"
    regression = METRICS[metric].wants == "number" or grades
    own = EXPERT_MODELS.get(task_id)
    members, weights = own(rng, seed) if own else _tuned_vote(metric, regression, rng, seed)
    if regression:
        model: Any = ensemble.VotingRegressor(members, weights=weights)
    else:
        model = ensemble.VotingClassifier(members, voting="soft", weights=weights)
    return Pipeline(
        f"vote {'/'.join(f'{w:g}' for w in weights)} #{seed}",
        "expert",
        model,
        imputer=str(pick(rng, "median", "indicator")),
        log_target=metric in ("rmsle", "mae"),
        tune_cut=metric in ("f1", "qwk"),
        numeric_grades=grades,
        features=task_id in EXPERT_FEATURES,
    )


def _tuned_vote(metric: str, regression: bool, rng: np.random.Generator, seed: int) -> Members:
    """Boosted trees twice, an extra forest, and a linear model on splines, with their weights."""
    from sklearn import ensemble, linear_model

    trees = [
        (f"b{k}", boosted(rng, seed + k, int(pick(rng, 120, 160)), metric, tuned=True, classes=not regression))
        for k in range(2)
    ]
    weights = [2.0, 2.0, float(pick(rng, 0.5, 1.0, 1.5)), float(pick(rng, 0.3, 0.6))]
    forest: Any
    if regression:
        forest = ensemble.ExtraTreesRegressor(80, min_samples_leaf=2, max_features=0.6, random_state=seed)
        plain = splines(linear_model.Ridge(1.0))
    else:
        forest = ensemble.ExtraTreesClassifier(150, min_samples_leaf=2, max_features=0.6, random_state=seed)
        plain = splines(linear_model.LogisticRegression(C=0.3, max_iter=3000))
    return [*trees, ("forest", forest), ("plain", plain)], weights
