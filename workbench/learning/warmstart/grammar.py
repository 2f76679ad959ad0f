"""Ordinary pandas and scikit-learn scripts as combinations of choices that a beginner makes.

`draw` makes the choices with probabilities that depend only weakly on what a task needs: that is where the failures of
the warm-started policy come from. Every script is right Python and consistent in itself; whether it is right for
the task is left open. `repair` and `improve` make the pairs for debugging and for improving.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from workbench.learning.warmstart.schemas import Schema

HEADER = """import numpy as np
import pandas as pd
from sklearn import dummy, ensemble, linear_model, metrics, neighbors, tree
from sklearn.impute import SimpleImputer
from sklearn.model_selection import cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OrdinalEncoder, StandardScaler

"""

NAMES = {"literal": 0.35, "sample": 0.40, "absent": 0.25}
ENCODE = {
    "none": 0.44,
    "number": 0.15,
    "dummies": 0.15,
    "dummies_apart": 0.08,
    "ordinal": 0.08,
    "strict": 0.05,
    "codes": 0.05,
}
MISSING = {"none": 0.50, "zero": 0.16, "median": 0.16, "imputer": 0.12, "drop": 0.06}
MODES: Mapping[str, Mapping[str, float]] = {
    "probability": {"probability": 0.66, "label": 0.22, "number": 0.12},
    "probabilities": {"probabilities": 0.62, "label": 0.22, "probability": 0.10, "number": 0.06},
    "label": {"label": 0.64, "probability": 0.18, "number": 0.18},
    "number": {"number": 0.66, "label": 0.28, "probability": 0.06},
}
"""What the script predicts, given what the metric wants."""
FAMILIES = {
    "dummy": 0.07,
    "linear": 0.20,
    "ridge": 0.05,
    "knn": 0.10,
    "tree": 0.16,
    "forest": 0.18,
    "extra": 0.08,
    "hist": 0.10,
    "boost": 0.06,
}
GOOD_FAMILIES = {"linear": 0.12, "forest": 0.32, "extra": 0.16, "hist": 0.22, "boost": 0.18}
SCORE = {"none": 0.12, "holdout": 0.68, "cv": 0.20}


@dataclass(frozen=True, slots=True)
class Plan:
    """The choices of one script."""

    names: str
    """`literal`: ID and TARGET written out; `sample`: the two columns of the sample submission; `absent`: TARGET is the
    column that test.csv lacks."""
    missing: str
    encode: str
    mode: str
    log: bool
    family: str
    size: int
    """Index into the family's hyper-parameters."""
    scale: bool
    score: str
    sign: bool
    """Whether a negated scikit-learn score is turned round before printing."""
    submit: str
    """`frame`: a new frame; `sample`: the sample submission, filled in."""


def pick(rng: random.Random, weights: Mapping[str, float]) -> str:
    return rng.choices(tuple(weights), tuple(weights.values()))[0]


def draw(rng: random.Random, schema: Schema) -> Plan:
    """A beginner's choices for a task."""
    mode = pick(rng, MODES[schema.wants])
    family = pick(rng, FAMILIES)
    return Plan(
        names=draw_names(rng, mode),
        missing=pick(rng, MISSING),
        encode=pick(rng, ENCODE),
        mode=mode,
        log=mode == "number" and rng.random() < (0.35 if schema.metric == "rmsle" else 0.06),
        family=family,
        size=rng.randrange(3),
        scale=family in ("linear", "ridge", "knn") and rng.random() < 0.4,
        score=pick(rng, SCORE),
        sign=rng.random() < 0.6,
        submit="frame" if rng.random() < 0.6 else "sample",
    )


def draw_names(rng: random.Random, mode: str) -> str:
    names = pick(rng, NAMES)
    return "absent" if mode == "probabilities" and names == "sample" else names


def has_text(schema: Schema) -> bool:
    return any(feature.kind == "text" for feature in schema.features)


def good(rng: random.Random, schema: Schema, plan: Plan, *, strength: float = 1.0) -> Plan:
    """`plan` with each choice that does not suit the task mended with probability `strength`."""

    def mend() -> bool:
        return rng.random() < strength

    changes: dict[str, object] = {}
    if has_text(schema) and plan.encode in ("none", "dummies_apart", "strict") and mend():
        changes["encode"] = pick(rng, {"dummies": 0.45, "number": 0.3, "ordinal": 0.25})
    if any(feature.missing for feature in schema.features) and plan.missing in ("none", "drop") and mend():
        changes["missing"] = pick(rng, {"zero": 0.25, "median": 0.35, "imputer": 0.4})
    if plan.mode != schema.wants and mend():
        changes["mode"] = schema.wants
        changes["log"] = False
        if schema.wants == "probabilities":
            changes["names"] = "absent" if plan.names == "sample" else plan.names
    return replace(plan, **changes)  # type: ignore[arg-type]


def repair(rng: random.Random, schema: Schema, plan: Plan, error: str) -> Plan:
    """Another plan after `error`: mostly the choice that the message points at, sometimes a wrong guess."""
    if rng.random() < 0.15:
        return replace(plan, **{field: getattr(draw(rng, schema), field) for field in ("encode", "family", "missing")})
    mended = good(rng, schema, plan, strength=0.5)
    if "not found in axis" in error or "KeyError" in error or "unpack" in error:
        return replace(mended, names="absent" if mended.mode == "probabilities" else pick(rng, NAMES))
    if "could not convert" in error and plan.encode in ("none",) and has_text(schema):
        mended = replace(mended, encode=pick(rng, {"dummies": 0.45, "number": 0.3, "ordinal": 0.25}))
    elif "NaN" in error and mended.missing in ("none", "drop"):
        mended = replace(mended, missing=pick(rng, {"zero": 0.25, "median": 0.35, "imputer": 0.4}))
    elif "feature names" in error or "unknown categories" in error:
        mended = replace(mended, encode=pick(rng, {"dummies": 0.45, "number": 0.3, "ordinal": 0.25}))
    elif mended == plan:
        mended = good(rng, schema, plan)
    if "negative" in error and mended.family in ("linear", "ridge"):
        mended = replace(mended, family="forest", scale=False)
    if "predict_proba" in error or mended == plan:
        mended = replace(
            good(rng, schema, mended), score=pick(rng, SCORE), family=pick(rng, GOOD_FAMILIES), scale=False
        )
    return mended


def improve(rng: random.Random, schema: Schema, plan: Plan) -> Plan:
    """Another plan after a valid one: mostly a stronger model, sometimes any change."""
    if rng.random() < 0.25:
        other = draw(rng, schema)
        return replace(plan, family=other.family, size=other.size, scale=other.scale, encode=other.encode)
    family = pick(rng, GOOD_FAMILIES)
    log = plan.mode == "number" and (plan.log or (schema.metric == "rmsle" and rng.random() < 0.6))
    encode = (
        pick(rng, {"dummies": 0.6, "ordinal": 0.4}) if plan.encode == "number" and rng.random() < 0.5 else plan.encode
    )
    return replace(
        plan,
        family=family,
        size=rng.randrange(3),
        scale=False,
        log=log,
        encode=encode,
        sign=plan.sign or rng.random() < 0.6,
    )


def script(plan: Plan, schema: Schema) -> str:
    """The script of a plan."""
    return HEADER + _load(plan, schema) + _encode(plan) + _fill(plan) + _fit(plan, schema) + _write(plan)


def _load(plan: Plan, schema: Schema) -> str:
    text = f"ID = '{schema.id_column}'\nTARGET = '{schema.target}'\n" if plan.names == "literal" else ""
    text += "train = pd.read_csv('./input/train.csv')\ntest = pd.read_csv('./input/test.csv')\n"
    if plan.submit == "sample" or plan.names != "literal":
        text += "sub = pd.read_csv('./input/sample_submission.csv')\n"
    if plan.names == "sample":
        text += "ID, TARGET = sub.columns\n"
    if plan.names == "absent":
        text += "ID = sub.columns[0]\nTARGET = [name for name in train if name not in test][0]\n"
    if plan.missing == "drop":
        text += "train = train.dropna()\n"
    return text + "X = train.drop(columns=[ID, TARGET])\nX_test = test.drop(columns=[ID])\n"


_CATEGORIES = "cat = X.select_dtypes(exclude='number').columns\n"
_ENCODERS = {
    "none": "",
    "number": "X = X.select_dtypes('number')\nX_test = X_test[X.columns]\n",
    "dummies": "both = pd.get_dummies(pd.concat([X, X_test]), dtype=float)\nX, X_test = both[:len(X)], both[len(X):]\n",
    "dummies_apart": "X = pd.get_dummies(X)\nX_test = pd.get_dummies(X_test)\n",
    "ordinal": _CATEGORIES
    + "enc = OrdinalEncoder(handle_unknown='use_encoded_value', unknown_value=-1)\n"
    + "X[cat] = enc.fit_transform(X[cat])\nX_test[cat] = enc.transform(X_test[cat])\n",
    "strict": _CATEGORIES
    + "enc = OrdinalEncoder()\nX[cat] = enc.fit_transform(X[cat])\nX_test[cat] = enc.transform(X_test[cat])\n",
    "codes": "for name in X.select_dtypes(exclude='number'):\n"
    + "    X[name] = pd.factorize(X[name])[0]\n    X_test[name] = pd.factorize(X_test[name])[0]\n",
}
_FILLERS = {
    "none": "",
    "drop": "",
    "zero": "X, X_test = X.fillna(0), X_test.fillna(0)\n",
    "median": "middle = X.median()\nX, X_test = X.fillna(middle), X_test.fillna(middle)\n",
    "imputer": "fill = SimpleImputer(strategy='median').fit(X)\n"
    + "X, X_test = fill.transform(X), fill.transform(X_test)\n",
}


def _encode(plan: Plan) -> str:
    return _ENCODERS[plan.encode]


def _fill(plan: Plan) -> str:
    return _FILLERS[plan.missing]


def _model(plan: Plan) -> str:
    number = plan.mode == "number"
    kind = "Regressor" if number else "Classifier"
    trees, depth, near = (20, 30, 40)[plan.size], (3, 5, 8)[plan.size], (3, 5, 15)[plan.size]
    models = {
        "dummy": f"dummy.Dummy{kind}()",
        "linear": "linear_model.LinearRegression()" if number else "linear_model.LogisticRegression(max_iter=200)",
        "ridge": "linear_model.Ridge()" if number else "linear_model.LogisticRegression(C=0.1, max_iter=200)",
        "knn": f"neighbors.KNeighbors{kind}({near})",
        "tree": f"tree.DecisionTree{kind}(max_depth={depth}, random_state=0)",
        "forest": f"ensemble.RandomForest{kind}({trees}, random_state=0)",
        "extra": f"ensemble.ExtraTrees{kind}({trees}, random_state=0)",
        "hist": f"ensemble.HistGradientBoosting{kind}(max_iter={trees}, random_state=0)",
        "boost": f"ensemble.GradientBoosting{kind}(n_estimators={trees}, random_state=0)",
    }
    model = models[plan.family]
    return f"make_pipeline(StandardScaler(), {model})" if plan.scale else model


_SCORERS = {
    "auc": "roc_auc",
    "logloss": "neg_log_loss",
    "rmse": "neg_root_mean_squared_error",
    "rmsle": "neg_root_mean_squared_log_error",
    "mae": "neg_mean_absolute_error",
    "accuracy": "accuracy",
    "f1": "f1_macro",
    "qwk": "accuracy",
}


def measured(plan: Plan, schema: Schema) -> str:
    """The metric that the script estimates: the task's where its predictions allow, else the usual one for them."""
    metric = schema.metric
    if plan.mode == "number":
        if plan.log:
            return "rmse"
        return metric if metric in ("rmse", "rmsle", "mae") else "rmse"
    if plan.mode == "label":
        return metric if metric in ("accuracy", "f1", "qwk") else "accuracy"
    return "auc" if plan.mode == "probability" and metric != "logloss" else "logloss"


def _predict(plan: Plan, rows: str) -> str:
    if plan.mode == "probability":
        return f"model.predict_proba({rows})[:, 1]"
    return f"model.predict_proba({rows})" if plan.mode == "probabilities" else f"model.predict({rows})"


_METRIC_CALLS = {
    "auc": "metrics.roc_auc_score(y_val, {})",
    "logloss": "metrics.log_loss(y_val, {})",
    "qwk": "metrics.cohen_kappa_score(y_val, {}, weights='quadratic')",
    "rmse": "metrics.root_mean_squared_error(y_val, {})",
    "rmsle": "metrics.root_mean_squared_log_error(y_val, {})",
    "mae": "metrics.mean_absolute_error(y_val, {})",
    "accuracy": "metrics.accuracy_score(y_val, {})",
    "f1": "metrics.f1_score(y_val, {}, average='macro')",
}


def _fit(plan: Plan, schema: Schema) -> str:
    text = "y = np.log1p(train[TARGET])\n" if plan.log else "y = train[TARGET]\n"
    text += f"model = {_model(plan)}\n"
    metric = measured(plan, schema)
    if plan.score == "holdout":
        text += "X_fit, X_val, y_fit, y_val = train_test_split(X, y, random_state=0)\nmodel.fit(X_fit, y_fit)\n"
        text += f"score = {_METRIC_CALLS[metric].format(_predict(plan, 'X_val'))}\n"
    elif plan.score == "cv":
        scorer = _SCORERS[metric]
        sign = "-" if scorer.startswith("neg_") and plan.sign else ""
        text += f"score = {sign}cross_val_score(model, X, y, cv=3, scoring='{scorer}').mean()\n"
    if plan.score != "none":
        text += "print(f'Validation score: {score:.5f}')\n"
    return text + "model.fit(X, y)\n"


def _write(plan: Plan) -> str:
    pred = _predict(plan, "X_test")
    pred = f"np.expm1({pred})" if plan.log else pred
    if plan.mode == "probabilities":
        if plan.submit == "sample":
            text = f"sub[sub.columns[1:]] = {pred}\n"
        else:
            text = f"sub = pd.DataFrame({pred}, columns=model.classes_)\nsub.insert(0, ID, test[ID])\n"
    elif plan.submit == "sample":
        text = f"sub[TARGET] = {pred}\n"
    else:
        text = f"sub = pd.DataFrame({{ID: test[ID], TARGET: {pred}}})\n"
    return text + "sub.to_csv('submission.csv', index=False)\n"
