"""Means, intervals and paired tests against numbers worked out by hand, and what must hold for any table."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from workbench.learning.statistics import (
    interval,
    mean,
    paired,
    ratio,
    ratio_interval,
    sign_flip_p,
)

NAN = float("nan")
tables = arrays(
    np.float64,
    array_shapes(min_dims=2, max_dims=2, min_side=2, max_side=6),
    elements=st.one_of(st.floats(-10, 10), st.just(NAN)),
)


def test_the_mean_gives_every_task_the_same_weight() -> None:
    assert mean([[0.0, 1.0], [1.0, 1.0]]) == 0.75
    assert mean([[0.0, 1.0], [NAN, 0.0]]) == 0.25, "(0 + 0.5) / 2, not 1 / 3"
    assert mean([[NAN, 1.0], [NAN, 0.0]]) == 0.5
    assert mean([[NAN]]) is None


def test_the_interval_is_the_bootstrap_of_the_mean() -> None:
    assert interval([0.5]) is None
    assert interval([[0.5], [NAN]]) is None
    assert interval([0.3, 0.3, 0.3]) == pytest.approx([0.3, 0.3])
    low, high = interval([0.0, 1.0] * 50) or (0, 0)
    # The mean of 100 fair coin flips has standard error 0.05: ±1.96 of it, and a little slack for 2,000 draws.
    assert low == pytest.approx(0.402, abs=0.02)
    assert high == pytest.approx(0.598, abs=0.02)


def test_two_seeds_have_the_three_means_they_can_have() -> None:
    """Of 0 and 1, drawn twice: 0 and 1 with probability 1/4 each, so both ends of 95 % are there."""
    assert interval([0.0, 1.0]) == [0.0, 1.0]


def test_seeds_are_drawn_with_tasks_fixed_unless_tasks_are_drawn_too() -> None:
    table = [[0.0, 1.0]] * 5  # each seed says the same: all that varies are the tasks
    assert interval(table) == [0.5, 0.5]
    assert interval(table, over_tasks=True) == [0.0, 1.0]
    assert interval([[0.2], [0.4]], over_tasks=True) is None, "one task says nothing of others"


def test_seeds_are_drawn_whole() -> None:
    """Two tasks that always move against each other have a mean that never varies."""
    assert interval([[0.0, 1.0], [1.0, 0.0], [0.25, 0.75]]) == pytest.approx([0.5, 0.5])


def test_a_ratio_is_of_sums() -> None:
    assert ratio([1, 3], [2, 8]) == 0.4
    assert ratio([0], [0]) is None
    assert ratio_interval([1, 3], [2, 8]) == pytest.approx([0.375, 0.5]), "3/8 and 1/2 are the ends there are"
    assert ratio_interval([1, 0], [2, 0]) is None


def test_sign_flips_by_hand() -> None:
    """Of the 8 signs of 1, 2, 3 only the one seen and its opposite have a sum of 6 or more; of 1, 2, -3, all do."""
    assert sign_flip_p([1.0, 2.0, 3.0]) == 2 / 8
    assert sign_flip_p([1.0, 2.0, -3.0]) == 1.0
    assert sign_flip_p([1.0, 2.0, 2.0, -1.0]) == pytest.approx(6 / 16), "|sum| >= 4: ±6, twice ±4"
    assert sign_flip_p([1.0]) is None
    many = sign_flip_p([1.0] * 40)
    assert many == pytest.approx(1 / 10_001), "never 0"
    assert sign_flip_p([1.0, -1.0] * 20) == 1.0


def test_pairs_are_narrower_than_what_they_are_made_of() -> None:
    rng = np.random.default_rng(0)
    hard = rng.normal(size=(30, 4))
    found = paired(hard + 0.1 + 0.01 * rng.normal(size=hard.shape), hard)
    low, high = found["difference_ci"]  # type: ignore[misc]
    assert 0.09 < low < 0.1 < high < 0.11
    assert found["p"] == pytest.approx(1e-4, rel=0.01)
    with pytest.raises(ValueError, match="no pairs"):
        paired([1.0], [1.0, 2.0])


def test_a_pair_that_lacks_one_side_is_left_out() -> None:
    found = paired([[1.0, 5.0], [3.0, NAN]], [[0.0, NAN], [1.0, 2.0]])
    assert found["difference"] == 1.5
    assert found["p"] == 0.5


@given(tables)
def test_a_policy_differs_from_itself_by_exactly_nothing(table: np.ndarray) -> None:
    found = paired(table, table)
    if np.isnan(table).all():
        assert found == {"difference": None, "difference_ci": None, "difference_ci_tasks": None, "p": None}
        return
    assert found["difference"] == 0.0
    for name in ("difference_ci", "difference_ci_tasks"):
        assert found[name] in (None, [0.0, 0.0])
    assert found["p"] in (None, 1.0)


@given(tables, st.randoms(use_true_random=False))
def test_the_order_of_seeds_changes_no_bit(table: np.ndarray, random: object) -> None:
    order = list(range(len(table)))
    random.shuffle(order)  # type: ignore[attr-defined]
    shuffled = table[order]
    assert mean(shuffled) == mean(table)
    assert interval(shuffled) == interval(table)
    assert interval(shuffled, over_tasks=True) == interval(table, over_tasks=True)
    assert sign_flip_p(shuffled) == sign_flip_p(table)


@given(tables)
def test_an_interval_lies_within_the_values_and_turns_with_their_sign(table: np.ndarray) -> None:
    for over_tasks in (False, True):
        found = interval(table, over_tasks=over_tasks)
        if found is None:
            continue
        low, high = found
        assert np.nanmin(table) - 1e-9 <= low <= high <= np.nanmax(table) + 1e-9
        assert all(map(math.isfinite, found))
    p, turned = sign_flip_p(table), sign_flip_p(-table)
    assert p == turned
    assert p is None or 0 < p <= 1
