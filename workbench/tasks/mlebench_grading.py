"""Grading a submission to a competition of mle-bench, in the grader's process: its own `grade.py` may run here.

What is read is read as mle-bench reads it (pandas' missing values, floats to the last digit), the score is rounded to
five decimals before anybody compares it, and whatever the grader raises makes the submission invalid.

`final` is the score on all private rows: medals are computed on it and on nothing else. `reward` is the score on 40 %
of them, drawn once per competition, among submissions that are valid as a whole. Rows are told apart by their rank in
the order of the ids, as the graders align them; nomad, whose grader does not align, by their place in the file. Where
40 % cannot be graded (a class is missing among them, the competition is none of the 22, the answers are no table),
`reward` reads all rows.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import json
import math
import re
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from workbench.tasks.mlebench_metrics import LITE, METRICS, Competition, Refused, own_score
from workbench.tasks.submission import MAX_COLUMNS, MAX_HEADER
from workbench.tasks.task import Grade, GraderName, Split, stamp
from workbench.types import WorkbenchError

if TYPE_CHECKING:
    from workbench.tasks.mlebench import BenchTask

REWARD_SHARE = 0.4
SHOWN = 300
"""Characters of an error that a reason keeps."""
MAX_SAMPLE_HEADER = 1_000_000
PACKAGE = "mlebench"
STUBS = ("py7zr",)
"""Modules that mle-bench imports for its downloads and that no grader needs."""

Scored = tuple[float | None, str | None]
"""A score, or the reason why there is none."""
GradeFunction = Callable[[Any, Any], Any]


def grade(task: BenchTask, submission: bytes, split: Split) -> Grade:
    """Score a submission with the competition's own grader, with ours where that cannot be imported.

    Raises WorkbenchError when neither is there, or when the answers cannot be read.
    """
    function, name, note = grader_of(task)
    if wide := _too_wide(task, submission):
        return Grade(None, wide, name, note)
    try:
        frame = _read_csv(io.BytesIO(submission))
    except (ValueError, OverflowError) as error:  # what pandas raises, UnicodeDecodeError too
        return Grade(None, f"the file cannot be read: {_short(error)}", name, note)
    truth = answers(task)
    score, reason = _scored(function, frame, truth)
    rows = reward_rows(task) if split == "reward" and score is not None else None
    if rows is not None:
        competition = LITE[task.id]
        score, reason = _scored(function, part(competition, frame, rows), part(competition, truth, rows))
    return Grade(score, reason, name, note)


def _too_wide(task: BenchTask, submission: bytes) -> str | None:
    """Why a first line is not even parsed: pandas takes a minute for a million columns."""
    first = re.split(rb"[\r\n]", submission, maxsplit=1)[0]
    with task.sample.open("rb") as file:
        own = file.readline(MAX_SAMPLE_HEADER)
    longest, most = max(MAX_HEADER, 2 * len(own)), max(MAX_COLUMNS, 2 * (own.count(b",") + 1))
    if len(first) > longest:
        return f"the first line is longer than {longest} characters."
    columns = first.count(b",") + 1
    return f"the file has {columns} columns, at most {most} are read." if columns > most else None


def grader_of(task: BenchTask) -> tuple[GradeFunction, GraderName, str | None]:
    """(what grades, whose it is, why it is not the competition's own). Raises WorkbenchError when there is none."""
    function, why = _import(str(task.repo), task.grade_fn)
    if function is not None:
        return function, "mle-bench", None
    if task.id not in LITE:
        raise WorkbenchError(
            f"'{task.id}' can be graded by its own grade.py alone, and that cannot be imported ({why}): mend it, or "
            "install what it needs."
        )
    return _own(task.id), "workbench", f"{task.grade_fn.partition(':')[0]} cannot be imported ({why})"


@cache
def _own(task_id: str) -> GradeFunction:
    return lambda submission, truth: own_score(LITE[task_id], submission, truth)


@cache
def _import(repo: str, place: str) -> tuple[GradeFunction | None, str]:
    """`package.module:function` of a checkout, or why it cannot be had."""
    module, _, name = place.partition(":")
    _go_to(repo)
    try:
        with _quiet():
            function = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:
        return None, _short(error, named=True)
    return (function, "") if callable(function) else (None, f"{place} is no function.")


def _go_to(repo: str) -> None:
    """What is imported from now on is this checkout's, also when another's was before."""
    package = sys.modules.get(PACKAGE)
    if package is not None and str(Path(repo, PACKAGE)) not in list(package.__path__):
        for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
            del sys.modules[name]
    sys.path[:] = [repo, *(place for place in sys.path if place != repo)]
    importlib.invalidate_caches()
    for stub in STUBS:
        if stub not in sys.modules and importlib.util.find_spec(stub) is None:
            sys.modules[stub] = types.ModuleType(stub)


def answers(task: BenchTask) -> Any:
    """The answers as mle-bench reads them. Raises WorkbenchError."""
    return _answers(task.answers, stamp(task.answers))


@lru_cache(maxsize=1)  # those of one competition may take gigabytes
def _answers(path: Path, changed: tuple[int, int]) -> Any:
    return _table(path)


def _table(path: Path) -> Any:
    try:
        if path.suffix == ".jsonl":
            return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return _read_csv(path)
    except (ValueError, OSError) as error:
        raise WorkbenchError(f"'{path}' cannot be read: {_short(error)}") from None


def _read_csv(source: Any) -> pd.DataFrame:
    """As mle-bench reads it, missing values by pandas' default. Words are objects, so that a missing one becomes 'nan'
    when a grader makes it a word: what pandas 3 does of itself keeps it missing, and equal to nothing."""
    with _as_mle_bench():
        try:
            return pd.read_csv(source, float_precision="round_trip")
        except pd.errors.EmptyDataError:
            return pd.DataFrame()


@contextlib.contextmanager
def _as_mle_bench() -> Iterator[None]:
    """Words are objects, as in the pandas that mle-bench was written for; no warnings, also not that this will go."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pd.option_context("future.infer_string", False):
            yield


def part(competition: Competition, frame: pd.DataFrame, rows: NDArray[np.int64]) -> pd.DataFrame:
    """Some rows of a table, by rank in the order of the ids, or by place."""
    if competition.align != "order":
        frame = frame.sort_values(competition.id_column, kind="stable")
    return frame.iloc[rows].reset_index(drop=True)


def reward_rows(task: BenchTask) -> NDArray[np.int64] | None:
    """Which rows `reward` reads; None for all of them."""
    return _reward_rows(task, stamp(task.answers)) if task.id in LITE else None


@lru_cache(maxsize=64)
def _reward_rows(task: BenchTask, changed: tuple[int, int]) -> NDArray[np.int64] | None:
    truth = answers(task)
    if not isinstance(truth, pd.DataFrame):
        return None
    rows = draw_rows(task.id, len(truth))
    function, _, _ = grader_of(task)
    competition = LITE[task.id]
    try:
        score, _ = _scored(function, part(competition, _table(task.gold), rows), part(competition, truth, rows))
    except (KeyError, IndexError, AttributeError):  # no such id column, other rows than answers, no table
        return None
    perfect = score is not None and math.isclose(score, METRICS[competition.metric].perfect, abs_tol=1e-5)
    return rows if perfect else None


def draw_rows(task_id: str, count: int) -> NDArray[np.int64]:
    """40 % of `count` places, in order; the same for one competition for ever."""
    seed = int.from_bytes(hashlib.sha256(task_id.encode()).digest()[:8], "big")
    order = np.random.default_rng(seed).permutation(count)
    return np.sort(order[: round(REWARD_SHARE * count)]).astype(np.int64)


def _scored(function: GradeFunction, submission: pd.DataFrame, truth: Any) -> Scored:
    try:
        with _quiet():
            score = round(float(function(submission.copy(), truth.copy())), 5)
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:
        plain = isinstance(error, Refused) or type(error).__name__ == "InvalidSubmissionError"
        return None, _short(error, named=not plain)
    return (score, None) if math.isfinite(score) else (None, f"the grader says {score}, which is no score.")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """A grader may print and warn, to nobody."""
    silence = io.StringIO()
    with contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence), _as_mle_bench():
        yield


def _short(error: BaseException, *, named: bool = False) -> str:
    """An error in one line that ends with a full stop."""
    text = " ".join(str(error).split()) or "no message"
    text = f"{type(error).__name__}: {text}" if named else text
    text = text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"
    return text if text.endswith((".", "…")) else text + "."
