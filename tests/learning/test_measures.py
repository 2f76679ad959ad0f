"""Attempts in numbers: medals and ranks, budgets, kinds of actions, runs as seeds, two policies side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest

from workbench.agent.environment import Outcome
from workbench.learning.attempts import Attempt
from workbench.learning.measures import (
    COMPARED,
    FINAL,
    MEASURES,
    Measured,
    budgets_up_to,
    compare,
    compare_with_constant,
    measure,
    summary,
)
from workbench.tasks.catalog import load_tasks
from workbench.tasks.leaderboard import human_rank
from workbench.tasks.mle import MleTask, answers, submission_bytes
from workbench.tasks.task import position, report
from workbench.types import Action, Feedback, Kind, State, StopReason, Turn, Verdict, WorkbenchError

# What an agent step comes to: nothing valid, the sample, a middling one, the truth.
NONE, SAMPLE, MIDDLE, TRUTH = range(4)


@pytest.fixture(scope="module")
def tasks() -> list[MleTask]:
    """Two tasks of numbers, better when lower."""
    return load_tasks("diamonds,used-cars")


def submission(task: MleTask, quality: int) -> bytes | None:
    if quality == NONE:
        return None
    if quality == SAMPLE:
        return (task.public_dir / "sample_submission.csv").read_bytes()
    truth = answers(task).truth
    return submission_bytes(task, truth if quality == TRUTH else truth * 1.2)


def attempt(task: MleTask, seed: int, qualities: Sequence[int], codes: Sequence[str] = ()) -> Attempt:
    """An attempt whose steps come to `qualities`; its own scores say the truth."""
    made = Attempt(task, seed, State(task.id, Kind.DRAFT))
    for number, quality in enumerate(qualities):
        code = codes[number] if number < len(codes) else f"step({number})\n"
        data = submission(task, quality)
        if data is None:
            feedback = Feedback(Verdict.RUNTIME_ERROR, code, failure="wrong_column", reason="KeyError: 'a'")
        else:
            feedback = Feedback(Verdict.OK, code, score=1.0, own_score=float(-quality))
        turn = Turn(made.state, Action(code, (5,), (-1.0,), 0, StopReason.EOS), feedback, None, "g", "t")
        made.advance(turn, Outcome(feedback, data, executed=True))
    return made


def measured(task: MleTask, rows: Sequence[Sequence[int]], budget: int = 4) -> Measured:
    return measure([attempt(task, seed, row) for seed, row in enumerate(rows)], budget)


def test_failures_count_as_the_floor_and_are_censored(tasks: list[MleTask]) -> None:
    result = summary([measured(tasks[0], [[SAMPLE], [NONE]])])
    assert result["valid_rate"] == 0.5
    assert result["steps_to_first_valid"] == (1 + 5) / 2
    assert result["censored_share"] == 0.5
    assert result["failures"] == {"wrong_column": 1}
    assert result["any_medal"] == 0.0
    assert {f"{name}{end}" for name in MEASURES for end in ("_ci", "_ci_tasks")} <= result.keys()
    json.dumps(result, allow_nan=False)


def test_an_attempt_that_was_cut_short_by_lost_executions_is_no_failure(tasks: list[MleTask]) -> None:
    cut = attempt(tasks[0], 1, [NONE])
    cut.lost = 12
    found = measure([attempt(tasks[0], 0, [NONE, SAMPLE]), cut], 2)
    result = summary([found])
    assert (result["valid_rate"], result["steps_to_first_valid"], result["censored_share"]) == (1.0, 2.0, 0.0)
    assert (result["unscorable"], result["attempts_lost"], len(result["tasks"][0]["attempts"])) == (12, 1, 1)
    with pytest.raises(WorkbenchError, match="No attempt at task 'diamonds' could be brought to its end"):
        measure([cut], 2)


def test_measures_are_those_of_the_final_submission(tasks: list[MleTask]) -> None:
    task = tasks[0]
    result = summary([measured(task, [[TRUTH, SAMPLE], [MIDDLE, NONE]])])
    middle = report(task, submission(task, MIDDLE))
    assert result["tasks"][0]["attempts"][1]["score"] == middle["score"]
    assert result["gold"] == (1 + middle["gold_medal"]) / 2
    assert result["human_rank"] == pytest.approx((1 + human_rank(middle["score"], task.scores, False)) / 2)
    assert result["position"] == pytest.approx((1 + position(task, middle["score"], "final")) / 2)
    assert result["tasks"][0]["position"] == result["position"]


def test_valid_actions_are_counted_by_kind(tasks: list[MleTask]) -> None:
    """Draft, debug, improve, improve: of two attempts 1 of 2 drafts, 1 of 1 debug, 3 of 4 improves are valid."""
    found = measured(tasks[0], [[NONE, SAMPLE, MIDDLE], [SAMPLE, MIDDLE, NONE]])
    result = summary([found])
    assert result["valid_action_rate_draft"] == 1 / 2
    assert result["valid_action_rate_debug"] == 1.0
    assert result["valid_action_rate_improve"] == 2 / 3
    assert result["valid_action_rate"] == result["tasks"][0]["valid_action_rate"] == 4 / 6
    never = summary([measured(tasks[0], [[SAMPLE], [SAMPLE]])])
    assert (never["valid_action_rate_debug"], never["valid_action_rate_debug_ci"]) == (None, None), "no NaN, and no 0"


def test_budgets_are_powers_of_two_and_the_last() -> None:
    assert budgets_up_to(32) == (1, 2, 4, 8, 16, 32)
    assert budgets_up_to(10) == (1, 2, 4, 8, 10)
    assert budgets_up_to(1) == (1,)
    assert budgets_up_to(40)[-2:] == (32, 40)


def test_the_curve_is_what_would_have_been_submitted(tasks: list[MleTask]) -> None:
    """Attempt 1 is perfect from step 2 on, attempt 2 from step 3: position 0, 1/2, 1 at budgets 1, 2, 4."""
    result = summary([measured(tasks[0], [[NONE, TRUTH, SAMPLE, NONE], [NONE, NONE, TRUTH, MIDDLE]])])
    assert [row["budget"] for row in result["curve"]] == [1, 2, 4]
    assert [row["position"] for row in result["curve"]] == [0.0, 0.5, 1.0]
    assert [row["valid_rate"] for row in result["curve"]] == [0.0, 0.5, 1.0]
    assert [row["gain"] for row in result["curve"]] == [None, 0.5, 0.5]
    assert result["curve"][-1]["any_medal"] == result["any_medal"] == 1.0
    assert result["curve"][1]["gain_ci"] == [0.0, 1.0]
    assert result["rises_until"] == 4, "no single step is sure, but two of them together are"


def test_the_curve_rises_until_the_last_sure_gain(tasks: list[MleTask]) -> None:
    result = summary([measured(tasks[0], [[MIDDLE, TRUTH, NONE, NONE], [MIDDLE, TRUTH, SAMPLE, SAMPLE]])])
    assert result["rises_until"] == 2
    dips = [[NONE, MIDDLE, SAMPLE, TRUTH, NONE, NONE, NONE, TRUTH]] * 2
    assert summary([measured(tasks[0], dips)])["rises_until"] == 4, "what comes after a dip must beat what came before"
    assert summary([measured(tasks[0], [[MIDDLE, TRUTH]])])["rises_until"] is None, "one attempt has no interval"


def test_the_curve_keeps_to_the_own_score_though_the_hidden_one_falls(tasks: list[MleTask]) -> None:
    task = tasks[0]
    made = Attempt(task, 0, State(task.id, Kind.DRAFT))
    for quality, own in ((TRUTH, 5.0), (SAMPLE, 1.0)):  # the worse one says the better score of itself
        feedback = Feedback(Verdict.OK, "x", score=1.0, own_score=own)
        turn = Turn(made.state, Action("x", (5,), (-1.0,), 0, StopReason.EOS), feedback, None, "g", "t")
        made.advance(turn, Outcome(feedback, submission(task, quality), executed=True))
    rows = summary([measure([made], 2)])["curve"]
    assert rows[0]["position"] == 1.0
    assert rows[1]["position"] < 0.5


def test_templates_of_drafts_only(tasks: list[MleTask]) -> None:
    task = tasks[0]
    rows = [
        attempt(task, 0, [NONE, SAMPLE], ["f('price')\n", "debug()\n"]),
        attempt(task, 1, [NONE, SAMPLE], ["f('stone')\n", "debug()\n"]),
        attempt(task, 2, [SAMPLE, SAMPLE], ["g(1)\n", "improve()\n"]),
    ]
    result = summary([measure(rows, 2)])
    assert (result["templates"], result["template_share"]) == (2, 2 / 3)
    assert result["tasks"][0]["template_share"] == 2 / 3


def test_of_several_runs_the_runs_are_the_seeds(tasks: list[MleTask]) -> None:
    """Run 1 is valid in 2 of 2, run 2 in 0 of 2 attempts: the mean is 1/2, and the interval all there is."""
    runs = [measured(tasks[0], rows) for rows in ([[SAMPLE], [SAMPLE]], [[NONE], [NONE]])]
    result = summary(runs)
    assert (result["valid_rate"], result["valid_rate_ci"]) == (0.5, [0.0, 1.0])
    assert (result["valid_action_rate"], result["valid_action_rate_ci"]) == (0.5, [0.0, 1.0])
    assert result["intervals_over"] == "runs"
    assert result["censored_share"] == 0.5
    even = summary([measured(tasks[0], [[SAMPLE], [NONE]])] * 3)
    assert even["valid_rate_ci"] == [0.5, 0.5], "what varies within a run does not count"


def test_two_policies_are_compared_attempt_by_attempt(tasks: list[MleTask]) -> None:
    ours = [measured(tasks[0], [[TRUTH], [SAMPLE], [TRUTH]])]
    theirs = [measured(tasks[0], [[SAMPLE], [SAMPLE], [NONE]])]
    found = compare(ours, theirs)
    assert set(found) == set(COMPARED)
    valid = found["valid_rate"]
    assert (valid["ours"], valid["theirs"], valid["difference"]) == (1.0, 2 / 3, pytest.approx(1 / 3))
    assert valid["p"] == 1.0, "differences 0, 0, 1: either sign is as far from 0"
    assert found["gold"]["difference"] == pytest.approx(2 / 3)
    assert found["gold"]["p"] == 0.5, "differences 1, 0, 1: 4 of 8 signs"
    assert found["steps_to_first_valid"]["difference"] == pytest.approx((0 + 0 - 4) / 3)


def test_a_policy_compared_with_itself(tasks: list[MleTask]) -> None:
    rows = [attempt(task, seed, [seed % 4, MIDDLE]) for seed in range(4) for task in tasks]
    same = measure(rows, 2)
    for one, other in (([same], [same]), ([same, same], [same, same])):
        for values in compare(one, other).values():
            assert (values["difference"], values["difference_ci"], values["p"]) == (0.0, [0.0, 0.0], 1.0)
            assert values["difference_ci_tasks"] == [0.0, 0.0]


def test_what_makes_no_pairs_is_refused(tasks: list[MleTask]) -> None:
    one = measured(tasks[0], [[SAMPLE]])
    with pytest.raises(ValueError, match="budget or attempts differ"):
        compare([one], [measured(tasks[0], [[SAMPLE]], budget=2)])
    with pytest.raises(ValueError, match="make no pairs"):
        compare([one], [one, one])
    with pytest.raises(ValueError, match="make no pairs"):
        compare([one, one], [one])


def test_a_fixed_script_is_compared_task_by_task(tasks: list[MleTask]) -> None:
    found = measure([attempt(task, seed, [SAMPLE]) for seed in range(2) for task in tasks], 1)
    values = {name: np.array([1.0, 0.0]) for name in FINAL}
    valid = compare_with_constant([found], values)["valid_rate"]
    assert (valid["ours"], valid["theirs"], valid["difference"]) == (1.0, 0.5, 0.5)
    assert valid["difference_ci"] == [0.5, 0.5]


def test_the_order_of_attempts_changes_nothing(tasks: list[MleTask]) -> None:
    rows = [attempt(task, seed, [seed % 4, MIDDLE]) for seed in range(4) for task in tasks]

    def plain(attempts: Sequence[Attempt]) -> str:
        return json.dumps(summary([measure(attempts, 2)])["curve"])

    assert plain(rows) == plain(rows[::-1])


def test_equal_submissions_are_graded_once(tasks: list[MleTask], monkeypatch: pytest.MonkeyPatch) -> None:
    from workbench.learning import measures

    graded: list[bytes | None] = []

    def counted(task: MleTask, data: bytes | None, path: None) -> dict[str, object]:
        graded.append(data)
        return report(task, data, path)

    monkeypatch.setattr(measures, "report", counted)
    measured(tasks[0], [[NONE, SAMPLE, SAMPLE, TRUTH], [SAMPLE, NONE, NONE, NONE]])
    assert len(graded) == len(set(graded)) == 3
