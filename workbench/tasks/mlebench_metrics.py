"""The 22 lite competitions of mle-bench: what identifies a row, what is predicted, and how it is scored.

Used where a competition's own `grade.py` cannot be imported. The checks are those that this competition's grader makes,
so that what is valid there is valid here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Array = NDArray[Any]
ROW_SUM = 1e-6
"""How far class probabilities of one row may be from summing to 1."""


class Refused(Exception):
    """Why a submission is invalid, as one sentence."""


@dataclass(frozen=True, slots=True)
class Competition:
    """What our grader and the prompt's card know of a competition."""

    id_column: str
    targets: tuple[str, ...]
    """Empty: all columns of the answers but the id."""
    metric: str
    """A key of `METRICS`."""
    align: Literal["ids", "sorted", "order"] = "ids"
    """Rows meet by equal ids; by rank after sorting, ids unchecked; or as they stand in the file."""
    exact: bool = False
    """No column may stand beside these."""
    ranged: bool = True
    """Probabilities must lie in [0, 1]."""


def _auc(truth: Array, said: Array) -> float:
    """Mean over columns of the area under the ROC curve; rows that Kaggle left out (-1) are skipped."""
    from sklearn.metrics import roc_auc_score

    kept = truth.sum(axis=1) >= 0
    columns = range(truth.shape[1])
    return float(np.mean([roc_auc_score(truth[kept, place], said[kept, place]) for place in columns]))


def _binary_logloss(truth: Array, said: Array) -> float:
    from sklearn.metrics import log_loss

    return float(log_loss(truth[:, 0], said[:, 0]))


def _logloss(truth: Array, said: Array) -> float:
    from sklearn.metrics import log_loss

    return float(log_loss(truth, said))


def _qwk(truth: Array, said: Array) -> float:
    from sklearn.metrics import cohen_kappa_score

    return float(cohen_kappa_score(said[:, 0], truth[:, 0], weights="quadratic"))


def _rmse(truth: Array, said: Array) -> float:
    from sklearn.metrics import root_mean_squared_error

    return float(root_mean_squared_error(truth, said))


def _rmsle(truth: Array, said: Array) -> float:
    """Mean over columns of the root mean squared logarithmic error."""
    from sklearn.metrics import root_mean_squared_log_error

    columns = range(truth.shape[1])
    return float(np.mean([root_mean_squared_log_error(truth[:, place], said[:, place]) for place in columns]))


def _accuracy(truth: Array, said: Array) -> float:
    from sklearn.metrics import accuracy_score

    return float(accuracy_score(truth[:, 0], said[:, 0]))


@dataclass(frozen=True, slots=True)
class BenchMetric:
    """`score` of (truth, said), both [rows, targets]; `perfect`, of the answers; `wants` as in prompts."""

    score: Callable[[Array, Array], float]
    perfect: float
    wants: Literal["probability", "probabilities", "label", "number", "text"]


METRICS: dict[str, BenchMetric] = {
    "auc": BenchMetric(_auc, 1.0, "probability"),
    "binary logloss": BenchMetric(_binary_logloss, 0.0, "probability"),
    "logloss": BenchMetric(_logloss, 0.0, "probabilities"),
    "qwk": BenchMetric(_qwk, 1.0, "label"),
    "rmse": BenchMetric(_rmse, 0.0, "number"),
    "mean rmsle": BenchMetric(_rmsle, 0.0, "number"),
    "accuracy": BenchMetric(_accuracy, 1.0, "label"),
    "text accuracy": BenchMetric(_accuracy, 1.0, "text"),
}

_TOXIC = ("toxic", "severe_toxic", "obscene", "threat", "insult", "identity_hate")
_NOMAD = ("formation_energy_ev_natom", "bandgap_energy_ev")
_RANZCR = (
    *("ETT - Abnormal", "ETT - Borderline", "ETT - Normal"),
    *("NGT - Abnormal", "NGT - Borderline", "NGT - Incompletely Imaged", "NGT - Normal"),
    *("CVC - Abnormal", "CVC - Borderline", "CVC - Normal", "Swan Ganz Catheter Present"),
)
_PLANTS = ("healthy", "multiple_diseases", "rust", "scab")

LITE: dict[str, Competition] = {
    "aerial-cactus-identification": Competition("id", ("has_cactus",), "auc"),
    "aptos2019-blindness-detection": Competition("id_code", ("diagnosis",), "qwk"),
    "denoising-dirty-documents": Competition("id", ("value",), "rmse"),
    "detecting-insults-in-social-commentary": Competition("Comment", ("Insult",), "auc"),
    "dog-breed-identification": Competition("id", (), "logloss"),
    "dogs-vs-cats-redux-kernels-edition": Competition("id", ("label",), "binary logloss"),
    "histopathologic-cancer-detection": Competition("id", ("label",), "auc"),
    "jigsaw-toxic-comment-classification-challenge": Competition("id", _TOXIC, "auc", exact=True, ranged=False),
    "leaf-classification": Competition("id", (), "logloss", exact=True),
    "mlsp-2013-birds": Competition("Id", ("Probability",), "auc"),
    "new-york-city-taxi-fare-prediction": Competition("key", ("fare_amount",), "rmse", align="sorted"),
    "nomad2018-predict-transparent-conductors": Competition("id", _NOMAD, "mean rmsle", align="order"),
    "plant-pathology-2020-fgvc7": Competition("image_id", _PLANTS, "auc", exact=True, ranged=False),
    "random-acts-of-pizza": Competition("request_id", ("requester_received_pizza",), "auc"),
    "ranzcr-clip-catheter-line-classification": Competition("StudyInstanceUID", _RANZCR, "auc"),
    "siim-isic-melanoma-classification": Competition("image_name", ("target",), "auc"),
    "spooky-author-identification": Competition("id", (), "logloss", exact=True),
    "tabular-playground-series-dec-2021": Competition("Id", ("Cover_Type",), "accuracy"),
    "tabular-playground-series-may-2022": Competition("id", ("target",), "auc"),
    "text-normalization-challenge-english-language": Competition("id", ("after",), "text accuracy"),
    "text-normalization-challenge-russian-language": Competition("id", ("after",), "text accuracy"),
    "the-icml-2013-whale-challenge-right-whale-redux": Competition("clip", ("probability",), "auc"),
}
"""In the order of mle-bench's list."""


def targets(competition: Competition, answers: pd.DataFrame) -> tuple[str, ...]:
    """The columns that are predicted."""
    return competition.targets or tuple(name for name in answers.columns if name != competition.id_column)


def own_score(competition: Competition, submission: pd.DataFrame, answers: pd.DataFrame) -> float:
    """Score by our metrics, not rounded. Raises Refused, or what scikit-learn raises."""
    names = targets(competition, answers)
    _check_columns(competition, submission, names)
    if len(submission) != len(answers):
        raise Refused(f"{len(answers)} rows are wanted, there are {len(submission)}.")
    submission, answers = _aligned(competition, submission), _aligned(competition, answers)
    id_column = competition.id_column
    if competition.align == "ids" and (submission[id_column].to_numpy() != answers[id_column].to_numpy()).any():
        raise Refused(f"column '{id_column}' does not hold the ids of the answers, each once.")
    metric = METRICS[competition.metric]
    if metric.wants in ("text", "label"):
        read = _texts if metric.wants == "text" else np.asarray
        return metric.score(read(answers[list(names)]), read(submission[list(names)]))
    said = submission[list(names)].apply(_numbers)
    if metric.wants != "number" and competition.ranged:
        _check_probabilities(said, sums=metric.wants == "probabilities")
    return metric.score(answers[list(names)].to_numpy(), said.to_numpy())


def _check_columns(competition: Competition, submission: pd.DataFrame, names: tuple[str, ...]) -> None:
    wanted = names if competition.align == "order" else (competition.id_column, *names)
    if absent := [name for name in wanted if name not in submission]:
        more = f" and {len(absent) - 3} more" if len(absent) > 3 else ""
        raise Refused(f"column {', '.join(map(repr, absent[:3]))}{more} is missing.")
    if competition.exact and set(submission.columns) != set(wanted):
        raise Refused(f"{len(wanted)} columns are wanted and nothing else, there are {len(submission.columns)}.")


def _aligned(competition: Competition, frame: pd.DataFrame) -> pd.DataFrame:
    return frame if competition.align == "order" else frame.sort_values(competition.id_column, kind="stable")


def _numbers(column: pd.Series) -> pd.Series:
    try:
        return pd.to_numeric(column)
    except ValueError:
        raise Refused(f"column '{column.name}' holds something that is no number.") from None


def _texts(frame: pd.DataFrame) -> Array:
    """Words as mle-bench compares them: what pandas takes for a missing value is one and the same word."""
    return np.array([["nan" if pd.isna(cell) else str(cell) for cell in row] for row in frame.to_numpy()], dtype=object)


def _check_probabilities(said: pd.DataFrame, *, sums: bool) -> None:
    if not ((said >= 0) & (said <= 1)).to_numpy().all():
        raise Refused("probabilities between 0 and 1 are wanted, without a gap.")
    if sums and not np.isclose(said.sum(axis=1), 1, atol=ROW_SUM).all():
        raise Refused("the probabilities of every row must sum to 1.")
