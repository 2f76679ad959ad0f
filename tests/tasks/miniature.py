"""Miniature competitions in mle-bench's layout: a data root and a checkout, a few rows each, all made up here."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from workbench.tasks.mlebench_metrics import LITE, METRICS, targets

ROWS = 20

UTILS = """
import py7zr  # as there: for downloads alone
print("imported")
"""
HELPERS = """
class InvalidSubmissionError(Exception):
    pass
"""
GRADE = """
from mlebench.grade_helpers import InvalidSubmissionError
from mlebench.utils import py7zr
import numpy as np

ID, TARGETS, KIND = {id!r}, {targets!r}, {kind!r}

def grade(submission, answers):
    print("grading", len(submission))
    for name in TARGETS if KIND == "mean rmsle" else [ID, *TARGETS]:
        if name not in submission.columns:
            raise InvalidSubmissionError(f"Column {{name}} is not there")
    if len(submission) != len(answers):
        raise InvalidSubmissionError("Lengths differ")
    if KIND != "mean rmsle":
        submission, answers = submission.sort_values(ID), answers.sort_values(ID)
        if (submission[ID].values != answers[ID].values).any():
            raise InvalidSubmissionError("Ids differ")
    from sklearn import metrics
    true, said = answers[TARGETS], submission[TARGETS]
    if KIND == "auc":
        return np.mean([metrics.roc_auc_score(true[name], said[name]) for name in TARGETS])
    if KIND == "text accuracy":
        return metrics.accuracy_score(true[TARGETS[0]].astype(str).to_numpy(), said[TARGETS[0]].astype(str).to_numpy())
    if KIND == "mean rmsle":
        return np.mean([metrics.root_mean_squared_log_error(true[name], said[name]) for name in TARGETS])
    if KIND == "rmse":
        return metrics.root_mean_squared_error(true, said)
    if KIND == "accuracy":
        return metrics.accuracy_score(true, said)
    raise NotImplementedError(KIND)
"""


@dataclass(frozen=True)
class Bench:
    """Where a miniature lies."""

    root: Path
    repo: Path

    def place(self, name: str) -> Path:
        """What the checkout knows of a competition."""
        return self.repo / "mlebench" / "competitions" / name

    def prepared(self, name: str) -> Path:
        return self.root / name / "prepared"


def make_bench(folder: Path) -> Bench:
    """An empty data root and a checkout that knows no competition."""
    bench = Bench(folder / "data", folder / "mle-bench")
    (bench.repo / "mlebench" / "competitions").mkdir(parents=True)
    bench.root.mkdir()
    for name, text in (("__init__", ""), ("utils", UTILS), ("grade_helpers", HELPERS), ("competitions/__init__", "")):
        (bench.repo / "mlebench" / f"{name}.py").write_text(text)
    return bench


def add(
    bench: Bench,
    name: str,
    *,
    answers: str = "private/test.csv",
    sample: str = "public/sample_submission.csv",
    gold: str | None = None,
    grader: str | None = None,
    board: Sequence[float] | None = None,
) -> Path:
    """Add a competition of the 22; returns its folder. `grader`: text of grade.py, None: one like theirs."""
    known = LITE[name]
    truth = truth_of(name)
    folder, place = bench.root / name, bench.place(name)
    for part in (folder / "prepared/public", folder / "prepared/private", folder / "raw", place):
        part.mkdir(parents=True)
    truth.to_csv(folder / "prepared" / answers, index=False)
    names = [known.id_column, *targets(known, truth)]
    if gold is not None:
        truth[names].to_csv(folder / "prepared" / gold, index=False)
    sample_of(name, truth[names]).to_csv(folder / "prepared" / sample, index=False)
    (folder / "prepared/public/description.md").write_text(f"# {name}\n\nPredict it.\n")
    gold_line = f"\n  gold_submission: {name}/prepared/{gold}" if gold else ""
    (place / "config.yaml").write_text(
        f"id: {name}\nname: {name}\ncompetition_type: simple\nawards_medals: true\nprizes: null\n"
        f"description: mlebench/competitions/{name}/description.md\ndataset:\n  answers: {name}/prepared/{answers}\n"
        f"  sample_submission: {name}/prepared/{sample}{gold_line}\n"
        f"grader:\n  name: {known.metric}\n  grade_fn: mlebench.competitions.{name}.grade:grade\n"
        f"preparer: mlebench.competitions.{name}.prepare:prepare\n"
    )
    write_board(place, board or board_of(name))
    text = GRADE.format(id=known.id_column, targets=names[1:], kind=known.metric) if grader is None else grader
    (place / "grade.py").write_text(text)
    return folder


def write_board(place: Path, scores: Sequence[float]) -> None:
    lines = [f"{score},team {number},2015-01-01" for number, score in enumerate(scores)]
    (place / "leaderboard.csv").write_text("\n".join(["score,teamName,submissionDate", *lines]) + "\n")


def board_of(name: str) -> list[float]:
    """Twenty teams between the dummy and perfection."""
    up = METRICS[LITE[name].metric].perfect == 1.0
    return [0.99 - 0.01 * place if up else 0.001 + 0.001 * place for place in range(20)]


def truth_of(name: str, rows: int = ROWS) -> pd.DataFrame:
    """Answers in the shape of a competition, with both classes among the rows of any large part of them."""
    known = LITE[name]
    metric = METRICS[known.metric]
    columns = known.targets or (("EAP", "HPL", "MWS") if "spooky" in name else ("a", "b", "c", "d"))
    ids = [f"row_{number:02}" for number in np.random.default_rng(3).permutation(rows)]
    frame = pd.DataFrame({known.id_column: ids})
    for place, column in enumerate(columns):
        number = np.arange(rows) + place
        if known.metric == "logloss":
            frame[column] = (number % len(columns) == 0).astype(int)
        elif metric.wants == "probability":
            frame[column] = (number % 3 == 0).astype(int)
        elif metric.wants == "label":
            frame[column] = number % 4
        elif metric.wants == "text":
            frame[column] = ["NA" if n % 5 == 0 else "null" if n % 5 == 1 else f"word {n}" for n in number]
        else:
            frame[column] = 1 + number / 7
    return frame


def sample_of(name: str, truth: pd.DataFrame) -> pd.DataFrame:
    """Valid and knowing nothing."""
    sample = truth.copy()
    wants = METRICS[LITE[name].metric].wants
    for column in sample.columns[1:]:
        value = {"probabilities": 1 / (len(sample.columns) - 1), "text": "x", "label": 0, "number": 0.0}
        sample[column] = value.get(wants, 0.5)
    return sample


def zip_in_place(path: Path) -> None:
    with zipfile.ZipFile(path.with_name(path.name + ".zip"), "w") as archive:
        archive.write(path, path.name)
    path.unlink()
