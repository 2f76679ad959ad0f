"""Potentials by hand, the ramp of ρ, and what counts as a group's rewards."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench import config as settings
from workbench.config import make_config
from workbench.learning.strategies import (
    STRATEGIES,
    Rewards,
    flat_handling,
    focus,
    learnability,
    regret,
    reward_statistics,
    variance,
)
from workbench.types import Action, Feedback, Group, Kind, Reward, State, StopReason, Turn, Verdict, WorkbenchError

DEFAULT = make_config()


def group(rewards: list[float | None]) -> Group:
    state = State("task", Kind.DRAFT)
    turns = tuple(
        Turn(
            state,
            Action("x", (1,), (-1.0,), 0, StopReason.EOS),
            Feedback(Verdict.INFRASTRUCTURE if total is None else Verdict.OK, "x"),
            None if total is None else Reward(total),
            "g",
            f"g/{member}",
        )
        for member, total in enumerate(rewards)
    )
    return Group("g", state, (1,), turns)


def statistics(rewards: list[float | None]) -> Rewards:
    known = reward_statistics(group(rewards))
    assert known is not None
    return known


# r = 1, 0, 0, 0: mean 1/4, std sqrt(3)/4 = 0.4330127, best 1
def test_potentials_by_hand() -> None:
    rewards = statistics([1.0, 0.0, 0.0, 0.0])
    assert rewards == Rewards(4, 0.25, pytest.approx(0.4330127), 1.0)
    assert learnability(rewards, DEFAULT) == pytest.approx(0.8660254 * 0.75)
    squared = make_config(std_exponent=2.0, headroom_exponent=3.0)
    assert learnability(rewards, squared) == pytest.approx(0.75 * 0.75**3)
    assert variance(rewards, DEFAULT) == pytest.approx(0.25 * 0.75)
    assert regret(rewards, DEFAULT) == pytest.approx(0.75)


# r = 0.2, 0.6: mean 0.4, std 0.2 → (0.4)(0.6) = 0.24; regret 0.2; 0.4·0.6 = 0.24 as well
def test_graded_rewards_by_hand() -> None:
    rewards = statistics([0.2, 0.6])
    assert learnability(rewards, DEFAULT) == pytest.approx(0.24)
    assert regret(rewards, DEFAULT) == pytest.approx(0.2)
    assert variance(rewards, DEFAULT) == pytest.approx(0.24)


def test_learnability_peaks_where_a_quarter_succeeds_and_variance_where_half_does() -> None:
    groups = [statistics([1.0] * k + [0.0] * (8 - k)) for k in range(9)]
    for potential, peak in ((learnability, 2), (variance, 4), (regret, 1)):
        values = [potential(rewards, DEFAULT) for rewards in groups]
        assert max(range(9), key=values.__getitem__) == peak
        assert values[0] == values[8] == 0


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_hopeless_and_solved_states_have_no_potential(name: str, value: float) -> None:
    assert STRATEGIES[name].potential(statistics([value] * 8), DEFAULT) == 0


@pytest.mark.parametrize("name", STRATEGIES)
@given(rewards=st.lists(st.floats(-2, 3), min_size=2, max_size=16))
def test_potentials_lie_in_the_unit_interval(name: str, rewards: list[float]) -> None:
    assert 0 <= STRATEGIES[name].potential(statistics(rewards), DEFAULT) <= 1


def test_rewards_are_clipped_and_rounding_is_no_spread() -> None:
    assert statistics([-1.0, 2.0]) == Rewards(2, 0.5, 0.5, 1.0)
    assert statistics([0.1 + 0.2, 0.3, 0.3]).std == 0


def test_unscorable_members_leave_every_denominator() -> None:
    assert statistics([1.0, None, 0.0, None]) == Rewards(2, 0.5, 0.5, 1.0)
    assert reward_statistics(group([1.0, None])) is None, "one reward says nothing of the spread"
    assert reward_statistics(group([None, None])) is None
    assert reward_statistics(group([math.nan, 0.0])) is None


def test_focus_rises_over_its_share_of_the_steps_and_stays() -> None:
    config = make_config(rho_end=1.0, rho_ramp=0.6)
    assert [focus(step, 100, config) for step in (0, 15, 30, 60, 61, 100)] == [0, 0.25, 0.5, 1, 1, 1]
    assert focus(30, 100, make_config(rho_end=2.0)) == 1.0
    assert focus(0, 100, make_config(rho_ramp=0.0)) == 1.0
    steps = [focus(step, 37, config) for step in range(38)]
    assert steps == sorted(steps)


def test_flat_groups_are_redrawn_for_dapo_and_kept_otherwise_unless_asked() -> None:
    assert flat_handling(make_config()) == "keep"
    assert flat_handling(make_config(strategy="dapo")) == "redraw"
    assert flat_handling(make_config(flat_groups="drop")) == "drop"
    with pytest.raises(WorkbenchError, match="flat_groups=drop contradicts strategy=dapo"):
        make_config(strategy="dapo", flat_groups="drop")


def test_every_strategy_of_the_settings_exists() -> None:
    assert set(STRATEGIES) == set(settings.STRATEGIES)
