"""Attempts choose by the agent's own score, and are graded once; intervals are over seeds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from workbench.agent.environment import Outcome
from workbench.learning.curves import interval
from workbench.learning.evaluate import MAX_DEBUGS, Attempt, summarise
from workbench.tasks.catalog import load_tasks
from workbench.tasks.mle import MleTask
from workbench.types import Action, Feedback, Kind, State, StopReason, Turn, Verdict, WorkbenchError


@pytest.fixture(scope="module")
def task() -> MleTask:
    """A task whose metric is better when lower."""
    return next(task for task in load_tasks("all") if not task.higher_is_better)


def begin(task: MleTask, seed: int = 0) -> Attempt:
    return Attempt(task, seed, State(task.id, Kind.DRAFT))


def act(attempt: Attempt, *, score: float | None, own: float | None = None, code: str = "print()") -> bytes | None:
    """One agent step with a given outcome; returns the submission's bytes."""
    feedback = Feedback(Verdict.OK, code, score=score, own_score=own)
    if score is None:
        feedback = replace(feedback, verdict=Verdict.RUNTIME_ERROR, failure="wrong_column", reason="KeyError: 'a'")
    action = Action(code, (5,), (-1.0,), 0, StopReason.EOS)
    submission = None if score is None else f"{attempt.steps}".encode()
    turn = Turn(attempt.state, action, feedback, None, "g", "t")
    attempt.advance(turn, Outcome(feedback, submission, executed=True))
    return submission


def lose(attempt: Attempt) -> None:
    feedback = Feedback(Verdict.INFRASTRUCTURE, "x", reason="gone")
    action = Action("x", (5,), (-1.0,), 0, StopReason.EOS)
    turn = Turn(attempt.state, action, feedback, None, "g", "t")
    attempt.advance(turn, Outcome(feedback, None, executed=True))


def test_best_own_score_is_submitted_whatever_the_hidden_score(task: MleTask) -> None:
    attempt = begin(task)
    act(attempt, score=1.0, own=5.0)
    best = act(attempt, score=9.0, own=3.0)
    act(attempt, score=0.5, own=4.0)
    act(attempt, score=0.1, own=None)
    assert attempt.submission == best


def test_without_own_scores_the_last_valid_submission_stands(task: MleTask) -> None:
    attempt = begin(task)
    act(attempt, score=1.0)
    last = act(attempt, score=9.0)
    act(attempt, score=None)
    assert attempt.submission == last


def test_states_follow_what_happened(task: MleTask) -> None:
    attempt = begin(task)
    act(attempt, score=None, code="a = 1")
    assert (attempt.state.kind, attempt.state.code) == (Kind.DEBUG, "a = 1")
    act(attempt, score=2.0, own=2.0, code="b = 1")
    assert (attempt.state.kind, attempt.state.code) == (Kind.IMPROVE, "b = 1")
    act(attempt, score=2.0, own=9.0, code="c = 1")
    assert attempt.state.code == "b = 1", "improves the best, not the last"
    assert attempt.first_valid == 2


def test_debugging_gives_up_after_three_and_starts_over(task: MleTask) -> None:
    attempt = begin(task)
    kinds = []
    for number in range(MAX_DEBUGS + 2):
        kinds.append(attempt.state.kind)
        act(attempt, score=None, code=f"x = {number}")
    assert kinds == [Kind.DRAFT, *[Kind.DEBUG] * MAX_DEBUGS, Kind.DRAFT]


def test_summary_counts_failures_as_the_floor_and_censors(task: MleTask) -> None:
    valid, failed = begin(task, 0), begin(task, 1)
    act(failed, score=None)
    sample = (task.public_dir / "sample_submission.csv").read_bytes()
    feedback = Feedback(Verdict.OK, "x", score=1.0)
    action = Action("x", (5,), (-1.0,), 0, StopReason.EOS)
    valid.advance(Turn(valid.state, action, feedback, None, "g", "t"), Outcome(feedback, sample, executed=True))
    result = summarise([valid, failed], seeds=2, budget=4)
    assert result["valid_rate"] == 0.5
    assert result["steps_to_first_valid"] == (1 + 5) / 2
    assert result["censored_share"] == 0.5
    assert result["failures"] == {"wrong_column": 1}
    assert result["any_medal"] == 0.0
    assert {f"{name}_ci" for name in ("valid_rate", "any_medal", "human_rank")} <= result.keys()


def test_what_the_sandbox_lost_is_no_step_and_no_failure(task: MleTask) -> None:
    attempt, hopeless = begin(task, 0), begin(task, 1)
    act(attempt, score=None, code="a = 1")
    stood = attempt.state
    for each in (attempt, hopeless):
        lose(each)
    assert (attempt.state, attempt.steps, attempt.debugs, attempt.failures) == (stood, 1, 1, ["wrong_column"])
    best = act(attempt, score=1.0)
    assert (attempt.submission, attempt.first_valid) == (best, 2)
    result = summarise([attempt, hopeless], seeds=2, budget=4)
    assert (result["unscorable"], result["steps_to_first_valid"], result["failures"]) == (2, 2.0, {"wrong_column": 1})
    with pytest.raises(WorkbenchError, match=f"any attempt at task '{task.id}' could be run"):
        summarise([hopeless], seeds=1, budget=4)


def test_interval_is_the_bootstrap_of_the_mean() -> None:
    assert interval([0.5]) is None
    assert interval([0.3, 0.3, 0.3]) == pytest.approx([0.3, 0.3])
    low, high = interval([0.0, 1.0] * 50) or (0, 0)
    # The mean of 100 fair coin flips has standard error 0.05: ±1.96 of it, and a little slack for 2,000 draws.
    assert low == pytest.approx(0.402, abs=0.02)
    assert high == pytest.approx(0.598, abs=0.02)
