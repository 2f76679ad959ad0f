"""What a step is measured by, on rows written by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from workbench.config import make_config
from workbench.learning.metrics import StageTimer, rollout_metrics, warning
from workbench.types import Action, Feedback, Group, Kind, Reward, State, StopReason, Turn, Verdict

STATE = State("t", Kind.DRAFT)
EOS = 2


def turn(ids: tuple[int, ...], stop: StopReason, *, version: int = 0, lost: bool = False) -> Turn:
    feedback = Feedback(Verdict.INFRASTRUCTURE if lost else Verdict.RUNTIME_ERROR, "code", cpu_s=1.0)
    action = Action("text", ids, (-1.0,) * len(ids), version, stop)
    return Turn(STATE, action, feedback, None if lost else Reward(0.05), "g", "g/0")


def test_lengths_are_those_of_the_rows_whatever_ids_they_hold() -> None:
    """An end of text inside a row, as a filler would be, is a token like any other."""
    turns = (turn((7, EOS), StopReason.EOS), turn((7, EOS, EOS, 8, 9), StopReason.LENGTH))
    metrics = rollout_metrics([], [Group("g", STATE, (1,), turns)], {}, version=0)
    assert metrics["completion_tokens_mean"] == 3.5
    assert metrics["clipped_completions"] == 0.5


def test_what_was_lost_by_us_is_no_part_of_a_rate() -> None:
    turns = (turn((7,), StopReason.EOS, version=1), turn((7,) * 99, StopReason.LENGTH, lost=True))
    metrics = rollout_metrics([], [Group("g", STATE, (1,), turns)], {}, version=3)
    assert (metrics["completion_tokens_mean"], metrics["clipped_completions"]) == (1, 0)
    assert metrics["staleness_mean"] == metrics["staleness_max"] == 2
    assert metrics["valid_action_rate"] == metrics["valid_action_rate_draft"] == 0


def test_components_are_means_over_what_they_apply_to_step_by_step() -> None:
    """One that applies to no row of a step has no value there, and no step remembers another."""

    def step(*components: dict[str, float] | None) -> dict[str, float]:
        rows = tuple(
            replace(turn((7,), StopReason.EOS), reward=None if parts is None else Reward(0.5, parts))
            for parts in components
        )
        measured = rollout_metrics([], [Group("g", STATE, (1,), rows)], {}, version=0)
        return {name: value for name, value in measured.items() if name.startswith("reward_component_")}

    assert step({"ladder": 0.0}, {"ladder": 1.0}, None) == {"reward_component_ladder": 0.5}
    assert step({"ladder": 1.0}, {"ladder": 1.0, "gain": 0.5}) == {
        "reward_component_ladder": 1.0,
        "reward_component_gain": 0.5,
    }
    assert step(None) == {}


def test_a_step_without_actions_has_no_rates() -> None:
    assert rollout_metrics([], [], {}, version=0) == {"actions": 0.0, "executions": 0.0, "skipped_prompts": 0.0}


def test_a_failing_sandbox_is_told_before_what_follows_from_it() -> None:
    config = make_config({"groups": 2, "group_size": 4})
    assert warning(config, {"unscorable": 1.0, "flat_share": 1.0}) == (
        "12% of the actions could not be run: see what `workbench doctor` says of the sandbox."
    )
    assert warning(config, {"unscorable": 0.0, "flat_share": 0.5}) is None


def test_a_part_of_a_stage_can_be_told_apart() -> None:
    timer = StageTimer()
    timer.seconds["generate"] = 3.0
    for _ in range(2):
        timer.split("generate", "execute", 0.5)
    found = timer.metrics()
    assert (found["seconds_generate"], found["seconds_execute"]) == (2.0, 1.0)


def test_measuring_is_no_time_of_training() -> None:
    timer = StageTimer()
    timer.start -= 10.0
    timer.seconds["measure"] = 7.0
    assert timer.metrics()["seconds"] == pytest.approx(3.0, abs=0.1)
    assert timer.metrics()["seconds_measure"] == 7.0
