from __future__ import annotations

import math
import random

import pytest

from workbench.learning.advantages import FLAT, group_advantages, mean_std
from workbench.types import WorkbenchError


# r = 1, 0, 0, 0: mean 1/4; std (ddof 0) = sqrt((0.75² + 3·0.25²)/4) = sqrt(3)/4 = 0.4330127
# 0.75/0.4330127 = 1.7320508;  -0.25/0.4330127 = -0.5773503
def test_scales_by_hand() -> None:
    rewards = [[1.0, 0.0, 0.0, 0.0]]
    assert group_advantages(rewards, "none")[0] == [[0.75, -0.25, -0.25, -0.25]]
    assert group_advantages(rewards, "group")[0][0] == pytest.approx([1.7320508, -0.5773503, -0.5773503, -0.5773503])


# two groups: 0, 1 and 0, 0.5: all rewards 0, 1, 0, 0.5 have mean 0.375 and variance
# (0.140625·2 + 0.390625 + 0.015625)/4 = 0.171875, std 0.4145781; group means 0.5 and 0.25
def test_batch_scale_by_hand() -> None:
    advantages, metrics = group_advantages([[0.0, 1.0], [0.0, 0.5]], "batch")
    assert advantages[0] == pytest.approx([-0.5 / 0.4145781, 0.5 / 0.4145781])
    assert advantages[1] == pytest.approx([-0.25 / 0.4145781, 0.25 / 0.4145781])
    assert metrics["reward_std_batch"] == pytest.approx(0.4145781)
    assert metrics["reward_std_within"] == pytest.approx((0.5 + 0.25) / 2)


def test_a_group_is_its_own_baseline() -> None:
    """Rewards of another group never enter a group's mean."""
    assert group_advantages([[0.0, 1.0], [10.0, 11.0]], "none")[0] == [[-0.5, 0.5], [-0.5, 0.5]]


def test_spread_between_flat_groups_teaches_nothing_and_is_told_apart() -> None:
    rewards = [[value] * 4 for value in (0.0, 0.2, 0.4, 1.0)]
    for scale in ("group", "batch", "none"):
        advantages, metrics = group_advantages(rewards, scale)
        assert advantages == [[0.0] * 4] * 4
        assert metrics["reward_std_within"] == 0
        assert metrics["reward_std_batch"] > 0.3
        assert metrics["flat_share"] == 1
        assert metrics["groups_used"] == 0
        assert metrics["advantage_abs_mean"] == 0
        assert all(math.isfinite(value) for value in metrics.values())


def test_rounding_of_equal_rewards_is_no_signal() -> None:
    rewards = [0.1 + 0.2, 0.3, 0.3, 0.3]  # 0.30000000000000004
    assert group_advantages([rewards], "group")[0] == [[0.0] * 4]
    assert group_advantages([[0.5, 0.5 + 4 * FLAT]], "group")[0][0] == pytest.approx([-1, 1], rel=1e-6)


def test_unscorable_members_are_left_out() -> None:
    # mean of 1, 0, 0.5 is 0.5
    advantages, metrics = group_advantages([[1.0, None, 0.0, 0.5]], "none")
    assert advantages == [[0.5, None, -0.5, 0.0]]
    assert metrics["unscorable"] == 1
    assert metrics["reward_mean"] == 0.5
    assert metrics["groups_used"] == 1


def test_a_group_of_one_has_no_baseline() -> None:
    advantages, metrics = group_advantages([[1.0, None], [None, None], [], [0.0, 1.0]], "group")
    assert advantages == [[None, None], [None, None], [], [-1.0, 1.0]]
    assert metrics["groups_dropped"] == 3
    assert metrics["groups_used"] == 1
    assert metrics["unscorable"] == 3
    assert metrics["reward_mean"] == pytest.approx(2 / 3)


def test_nothing_scorable_leaves_no_number_behind() -> None:
    advantages, metrics = group_advantages([[None, None]], "group")
    assert advantages == [[None, None]]
    assert metrics == {"groups_used": 0.0, "groups_dropped": 1.0, "unscorable": 2.0}
    assert group_advantages([], "group") == ([], {"groups_used": 0.0, "groups_dropped": 0.0, "unscorable": 0.0})


def test_one_reward_per_episode_however_many_rows_it_has() -> None:
    """The baseline is over episodes; rows inherit their episode's advantage, and do not count again in the mean."""
    (advantages,), _ = group_advantages([[1.0, 0.0]], "none")
    rows_of_episode = [0, 0, 0, 1]
    assert [advantages[episode] for episode in rows_of_episode] == [0.5, 0.5, 0.5, -0.5]


def test_effective_groups_are_logged() -> None:
    groups = [[0.0, 1.0]] * 2 + [[0.5, 0.5]] * 6
    metrics = group_advantages(groups, "group")[1]
    assert metrics["groups_used"] == 2
    assert metrics["flat_share"] == 0.75


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_order_of_members_and_groups_does_not_matter(scale: str) -> None:
    generator = random.Random(0)
    groups = [[generator.random() for _ in range(6)] for _ in range(5)]
    expected = group_advantages(groups, scale)[0]
    order = generator.sample(range(5), 5)
    inner = generator.sample(range(6), 6)
    shuffled = group_advantages([[groups[g][i] for i in inner] for g in order], scale)[0]
    assert shuffled == [[expected[g][i] for i in inner] for g in order]
    for row in expected:
        assert math.fsum(row) == pytest.approx(0, abs=1e-12)


def test_group_scale_has_unit_deviation() -> None:
    (row,), _ = group_advantages([[0.1, 0.9, 0.4, 0.4]], "group")
    assert mean_std(row) == pytest.approx((0, 1))


def test_unknown_scale() -> None:
    with pytest.raises(WorkbenchError, match="scale='std' is no scale"):
        group_advantages([[0.0, 1.0]], "std")
