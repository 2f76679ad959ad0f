"""Attempts choose by the agent's own score and know what would have been final after every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from workbench.agent.environment import Outcome
from workbench.config import make_config
from workbench.learning.attempts import LOST_ROUNDS, MAX_DEBUGS, Attempt, Greedy, run_attempts
from workbench.learning.measures import measure, summary
from workbench.sandbox.records import Limits
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


def test_what_would_be_final_is_known_after_every_step(task: MleTask) -> None:
    attempt = begin(task)
    assert attempt.after(3) is None
    act(attempt, score=None)
    first = act(attempt, score=2.0, own=2.0)
    act(attempt, score=1.0, own=9.0)
    attempt.start_over()
    best = act(attempt, score=9.0, own=1.0)
    assert [attempt.after(budget) for budget in (1, 2, 3, 4, 5, 99)] == [None, first, first, first, best, best]
    assert [(taken.kind, taken.valid) for taken in attempt.acts] == [
        (Kind.DRAFT, False),
        (Kind.DEBUG, True),
        (Kind.IMPROVE, True),
        (Kind.DRAFT, True),
    ], "a step without an action is no action"
    assert attempt.steps == 5


def test_what_the_sandbox_lost_is_no_step_and_no_failure(task: MleTask) -> None:
    attempt, hopeless = begin(task, 0), begin(task, 1)
    act(attempt, score=None, code="a = 1")
    stood = attempt.state
    for each in (attempt, hopeless):
        lose(each)
    assert (attempt.state, attempt.steps, attempt.debugs) == (stood, 1, 1)
    best = act(attempt, score=1.0)
    assert (attempt.submission, attempt.first_valid) == (best, 2)
    result = summary([measure([attempt, hopeless], 2)])
    assert (result["unscorable"], result["steps_to_first_valid"], result["failures"]) == (2, 2.0, {"wrong_column": 1})
    assert result["valid_action_rate"] == 0.5, "of two actions that were run"
    with pytest.raises(WorkbenchError, match=f"No attempt at task '{task.id}' could be brought"):
        measure([hopeless], 2)


class World:
    """An environment whose executions are lost, or break, by their number; else what a plain script comes to."""

    def __init__(self, task: MleTask, *, lost: Sequence[int] = (), breaks: int | None = None) -> None:
        self.tasks, self.lost, self.breaks, self.number = {task.id: task}, lost, breaks, 0
        self.executor, self.limits = self, Limits()

    def start(self) -> None: ...

    def submit(self, task_id: str, action: Action) -> Callable[[], Outcome]:
        self.number += 1
        number = self.number

        def wait() -> Outcome:
            if number == self.breaks:
                raise RuntimeError("the disk is full")
            verdict = Verdict.INFRASTRUCTURE if number in self.lost else Verdict.OK
            feedback = Feedback(verdict, action.text, score=1.0 if verdict is Verdict.OK else None)
            return Outcome(feedback, f"{number}".encode(), executed=True)

        return wait


class Writer:
    """A generator that writes what its seeds say, or the likeliest thing."""

    def generate(
        self, prompts: Any, n: int, *, seeds: Any, on_finish: Any = None, greedy: bool = False, **_: Any
    ) -> list[list[Action]]:
        rows = [[Action("best" if greedy else str(s), (5,), (0.0,), 0, StopReason.EOS) for s in row] for row in seeds]
        for place, row in enumerate(rows):
            for member, action in enumerate(row):
                on_finish(place, member, action)
        return rows


class Reader:
    """As much of a policy as prompts need."""

    def count_tokens(self, text: str) -> int:
        return len(text) // 4

    def prompt_ids(self, messages: Any) -> list[int]:
        return [1] * self.count_tokens(messages[0]["content"])


def attempts_in(world: World, generator: Any = None, **more: Any) -> list[Attempt]:
    config = make_config(max_prompt_tokens=2000)
    return run_attempts(Reader(), generator or Writer(), world, config, **{"attempts": 2, "budget": 3, **more})  # type: ignore[arg-type]


def test_a_lost_step_is_taken_again(task: MleTask) -> None:
    told: list[tuple[int, int]] = []
    every = attempts_in(World(task, lost=(1, 4)), on_progress=lambda done, total: told.append((done, total)))
    assert [(attempt.steps, attempt.lost) for attempt in every] == [(3, 1), (3, 1)]
    # Each round tells its actions as they are written, then the steps that they came to: one of two was lost, twice.
    assert told == [(1, 6), (2, 6), (1, 6), (2, 6), (3, 6), (2, 6), (3, 6), (4, 6), (4, 6), (5, 6), (6, 6), (6, 6)]
    often = attempts_in(World(task, lost=range(1, 100, 2)))  # the first attempt only has its fourth of five tries
    assert [(attempt.steps, attempt.lost) for attempt in often] == [(1, 2 + LOST_ROUNDS), (3, 0)], "bounded"


def test_an_error_of_ours_ends_the_evaluation_and_is_no_result(task: MleTask) -> None:
    with pytest.raises(RuntimeError, match="the disk is full"):
        attempts_in(World(task, breaks=4))


def test_equal_arguments_give_equal_attempts_and_greedy_ones_have_no_seed(task: MleTask) -> None:
    def codes(every: Sequence[Attempt]) -> list[list[str | None]]:
        return [[taken.code for taken in attempt.acts] for attempt in every]

    one, again, other = (codes(attempts_in(World(task), seed=seed)) for seed in (0, 0, 1))
    assert one == again
    assert one != other
    assert one[0] != one[1], "each attempt draws for itself"
    assert codes(attempts_in(World(task), Greedy(Writer()), attempts=1)) == [["best"] * 3]
