"""Run generated scripts on their random tables and keep the line that says what went wrong.

The scripts come from `grammar.py` alone, so they run in forked workers of this process rather than in the sandbox:
they are ours, there are thousands of them, and their error lines must be the same on every machine.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.agent.completions import parse_own_score
from workbench.agent.prompts import error_line
from workbench.learning.warmstart import schemas

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a script did: `error` is empty when its submission is valid; `score` is the one it printed of itself."""

    error: str
    score: float | None


def run_all(jobs: Sequence[tuple[int, str]], workers: int = 2) -> Iterator[Outcome]:
    """Outcomes of (schema seed, script) in the order of the jobs."""
    import sklearn.dummy
    import sklearn.ensemble
    import sklearn.impute
    import sklearn.linear_model
    import sklearn.model_selection
    import sklearn.neighbors
    import sklearn.pipeline
    import sklearn.preprocessing
    import sklearn.tree  # noqa: F401  (imported once here, inherited by the forks)

    os.environ["OMP_NUM_THREADS"] = "1"
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        yield from pool.imap(run_one, jobs, chunksize=8)


def run_one(job: tuple[int, str]) -> Outcome:
    """Run one script in a fresh folder laid out as the sandbox lays it out."""
    seed, code = job
    schema = schemas.make_schema(seed)
    train, test, sample, answers = schemas.tables(schema)
    back = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            os.mkdir("input")
            for name, frame in (("train", train), ("test", test), ("sample_submission", sample)):
                frame.to_csv(f"input/{name}.csv", index=False)
            return _run(code, schema, answers)
        finally:
            os.chdir(back)


def _run(code: str, schema: schemas.Schema, answers: pd.DataFrame) -> Outcome:
    from threadpoolctl import threadpool_limits

    out = io.StringIO()
    with contextlib.redirect_stdout(out), warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")
        try:
            exec(compile(code, "script.py", "exec"), {"__name__": "__main__"})
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            return Outcome((error_line(text) or text.splitlines()[0])[:300], None)
    path = Path("submission.csv")
    reason = refuse(schema, answers, path.read_bytes() if path.exists() else None)
    return Outcome(reason or "", parse_own_score(out.getvalue()))


def refuse(schema: schemas.Schema, answers: pd.DataFrame, submission: bytes | None) -> str | None:
    """Why a submission is invalid, in the grader's words; None when it is valid."""
    from workbench.tasks.metrics import METRICS
    from workbench.tasks.submission import BadSubmission, Form, canonical_id, parse

    if submission is None:
        return "no submission.csv was written."
    rows = {canonical_id(str(value)): row for row, value in enumerate(answers[schema.id_column])}
    form = Form(schema.id_column, schema.submission[1:], schema.classes, METRICS[schema.metric], rows, 1_000_000)
    try:
        parse(submission, form)
    except BadSubmission as reason:
        return str(reason)
    return None
