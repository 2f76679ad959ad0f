"""States of known success probability: what each strategy chooses once it has seen them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from workbench.config import make_config
from workbench.learning.sampler import Curriculum
from workbench.learning.strategies import teaches
from workbench.types import Action, Feedback, Group, Kind, Reward, State, StopReason, Turn, Verdict

STEPS, GROUPS, SIZE, EACH = 200, 8, 8, 200
CHANCES = [0.0] * EACH + [0.1 + 0.8 * place / (EACH - 1) for place in range(EACH)] + [1.0] * EACH
"""A third of the states is hopeless, a third is solved, a third lies between."""


def play(strategy: str, seed: int = 0, **values: Any) -> list[tuple[float, bool]]:
    """(chance of the state, whether its group was flat) of every group once ρ is 1."""
    config = make_config(steps=STEPS, groups=GROUPS, group_size=SIZE, strategy=strategy, seed=seed, **values)
    states = [State(f"task-{number:03d}", Kind.DRAFT) for number in range(len(CHANCES))]
    chance = {state.id: p for state, p in zip(states, CHANCES, strict=True)}
    curriculum = Curriculum(config, states, STEPS)
    luck = random.Random(f"frontier/{seed}")
    seen: list[tuple[float, bool]] = []
    for step in range(1, STEPS + 1):
        groups = [
            _group(state, [luck.random() < chance[state.id] for _ in range(SIZE)])
            for state in curriculum.choose(step, GROUPS)
        ]
        curriculum.observe(step, groups)
        if step > config.rho_ramp * STEPS:
            seen += [(chance[group.state.id], not teaches(group)) for group in groups]
    return seen


def _group(state: State, successes: Sequence[bool]) -> Group:
    action = Action("x", (1,), (-1.0,), 0, StopReason.EOS)
    turns = [
        Turn(state, action, Feedback(Verdict.OK, "x"), Reward(float(won)), "g", f"g/{i}")
        for i, won in enumerate(successes)
    ]
    return Group("g", state, (1,), tuple(turns))


def flat_share(seen: Sequence[tuple[float, bool]]) -> float:
    return sum(flat for _, flat in seen) / len(seen)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("strategy", ["acegrpo", "learnability", "variance", "regret"])
def test_flat_groups_are_less_than_half_as_many_as_by_chance(strategy: str, seed: int) -> None:
    assert flat_share(play(strategy, seed)) <= flat_share(play("uniform", seed)) / 2


def test_a_steeper_focus_leaves_fewer() -> None:
    assert flat_share(play("acegrpo", rho_end=2.0)) <= flat_share(play("acegrpo")) / 2


def test_the_focus_lies_where_less_than_half_succeeds() -> None:
    """Learnability is highest at a chance of 1/4: of the frontier, hard states are preferred to easy ones."""
    frontier = [p for p, _ in play("acegrpo") if 0 < p < 1]
    assert sum(frontier) / len(frontier) < 0.42, "0.5 by chance"


def test_the_share_of_chance_is_what_the_states_are() -> None:
    flat = sum(p**SIZE + (1 - p) ** SIZE for p in CHANCES) / len(CHANCES)
    assert flat_share(play("uniform")) == pytest.approx(flat, abs=0.06)
