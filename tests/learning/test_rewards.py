from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pandas as pd
import pytest

from workbench.learning.rewards import is_copy, sample_shas, score, score_groups
from workbench.tasks.mle import MleTask
from workbench.types import (
    Action,
    Feedback,
    Group,
    Kind,
    State,
    StopReason,
    Turn,
    Verdict,
    WorkbenchError,
)

DRAFT = State("t", Kind.DRAFT)
VALID = Feedback(Verdict.OK, "code", score=0.7)


def total(feedback: Feedback, position: float | None = None, *, copied: bool = False) -> float:
    reward = score(DRAFT, feedback, position=position, copied=copied)
    assert reward is not None
    return reward.total


def test_ladder() -> None:
    assert total(Feedback(Verdict.RUNTIME_ERROR, None)) == 0
    failures = (Verdict.RUNTIME_ERROR, Verdict.TIMEOUT, Verdict.MEMORY_LIMIT, Verdict.OUTPUT_LIMIT)
    assert [total(Feedback(verdict, "code")) for verdict in failures] == [0.05] * 4
    assert total(Feedback(Verdict.INVALID_SUBMISSION, "code")) == 0.10
    assert total(VALID, 0.0) == 0.2
    assert total(VALID, 0.5) == pytest.approx(0.6)  # 0.2 + 0.8 · 0.5
    assert total(VALID, 1.0) == 1.0


def test_a_copy_gets_no_more_than_running() -> None:
    assert total(VALID, 1.0, copied=True) == 0.10
    assert total(Feedback(Verdict.RUNTIME_ERROR, "code"), copied=True) == 0.05


def test_lost_by_us_is_not_zero() -> None:
    assert score(DRAFT, Feedback(Verdict.INFRASTRUCTURE, "code"), position=None, copied=False) is None


def test_components_are_as_measured() -> None:
    reward = score(DRAFT, VALID, position=0.25, copied=True)
    assert reward is not None
    assert reward.components == {"code": 1.0, "ran": 1.0, "valid": 1.0, "copied": 1.0, "position": 0.25}
    reward = score(DRAFT, Feedback(Verdict.TIMEOUT, "code"), position=None, copied=False)
    assert reward is not None
    assert reward.components == {"code": 1.0, "ran": 0.0, "valid": 0.0, "copied": 0.0}


@pytest.mark.parametrize("position", [None, math.nan, math.inf, -0.01, 1.5])
def test_position_must_be_a_number_from_0_to_1(position: float | None) -> None:
    with pytest.raises(WorkbenchError, match=rf"position={position} .* expected a number in \[0, 1\]"):
        score(DRAFT, VALID, position=position, copied=False)


@pytest.mark.parametrize(
    ("code", "parent", "same"),
    [
        ("x = 1\nprint(x)\n", "x=1 # one\n\n\nprint( x )", True),
        ("if x:\n    y = 1\n", "if x:\n  y = 1", True),
        ("if x:\n    y = 1\n    z = 2", "if x:\n    y = 1\nz = 2", False),
        ("x = 1", "x = 2", False),
        ("x = 'a b'", "x = 'ab'", False),
        ("x = (", "  x = (  \n", True),  # not Python: lines without surrounding space
        ("def f(:\n  '''", 'def f(:\n  """', False),
        ("", "", False),
        ("x = 1", "", False),
        ("x = 1\ud800", "x = 1\ud800", True),
    ],
)
def test_is_copy(code: str, parent: str, same: bool) -> None:
    assert is_copy(code, parent) is same
    assert is_copy(parent, code) is same


def turn(state: State, feedback: Feedback) -> Turn:
    return Turn(state, Action("text", (1,), (-0.1,), 0, StopReason.EOS), feedback, None, "g", "g/0")


@pytest.fixture
def task(tmp_path: Path) -> MleTask:
    pd.DataFrame({"id": [1, 2], "y": [0.5, 0.5]}).to_csv(tmp_path / "sample_submission.csv", index=False)
    facts = SimpleNamespace(
        public_dir=tmp_path,
        sample=tmp_path / "sample_submission.csv",
        higher_is_better=True,
        dummy_score={"reward": 0.5, "final": 0.5},
        thresholds=SimpleNamespace(gold=0.9),
    )
    return cast(MleTask, facts)


def test_score_groups_fills_in_every_reward(task: MleTask) -> None:
    sample = hashlib.sha256((task.public_dir / "sample_submission.csv").read_bytes()).hexdigest()
    improve = State("t", Kind.IMPROVE, "x = 1")
    turns = (
        turn(improve, replace(VALID, code="x = 2", score=0.7)),  # (0.7 - 0.5)/(0.9 - 0.5) = 0.5
        turn(improve, replace(VALID, code="x = 1  # better", score=0.9)),
        turn(improve, replace(VALID, code="x = 3", submission_sha=sample)),
        turn(improve, Feedback(Verdict.INFRASTRUCTURE, "x = 4")),
    )
    (group,) = score_groups([Group("g", improve, (1,), turns)], {"t": task})
    assert [t.reward and t.reward.total for t in group.turns] == [pytest.approx(0.6), 0.10, 0.10, None]
    assert group.rewards == pytest.approx([0.6, 0.1, 0.1])


def test_the_sample_is_recognised_as_pandas_writes_it(task: MleTask) -> None:
    path = task.public_dir / "sample_submission.csv"
    rewritten = path.read_bytes().replace(b"\n", b"\r\n")
    assert hashlib.sha256(path.read_bytes()).hexdigest() in sample_shas(task.sample)
    path.write_bytes(rewritten)  # and as it is now, not as it was when first read
    as_written = pd.read_csv(path).to_csv(index=False).encode()
    assert as_written != rewritten
    for form in (as_written, rewritten):
        assert hashlib.sha256(form).hexdigest() in sample_shas(task.sample)
