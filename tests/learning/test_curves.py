"""Areas under curves over executions, by hand, and paired bootstrap intervals."""

from __future__ import annotations

import math

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.learning.curves import area, common_end, difference_to_first, kept_out_curve, value_at
from workbench.types import WorkbenchError

CURVE = [(0.0, 0.2), (10.0, 0.4), (30.0, 0.8)]


def test_the_area_is_the_mean_height_by_trapezoids() -> None:
    # 10 · (0.2 + 0.4) / 2 = 3, 20 · (0.4 + 0.8) / 2 = 12
    assert area(CURVE, 30) == pytest.approx(15 / 30)
    assert area(CURVE, 10) == pytest.approx(3 / 10)
    # cut at 20, where the value is 0.6: 3 + 10 · (0.4 + 0.6) / 2 = 8
    assert value_at(CURVE, 20) == pytest.approx(0.6)
    assert area(CURVE, 20) == pytest.approx(8 / 20)
    assert area([(5.0, 0.0), (9.0, 1.0)], 9) == pytest.approx(0.5)


def test_a_curve_has_no_value_beyond_its_ends() -> None:
    with pytest.raises(WorkbenchError, match="known from 0 to 30 has no value at 31 executions"):
        area(CURVE, 31)
    with pytest.raises(WorkbenchError, match="no area up to 0"):
        area(CURVE, 0)
    with pytest.raises(WorkbenchError, match="known nowhere"):
        value_at([], 1)


def test_curves_are_compared_where_the_shortest_ends() -> None:
    assert common_end([CURVE, [(0.0, 0.1), (25.0, 0.3)]]) == 25


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(0, 1)), min_size=1, max_size=8), st.floats(0.01, 1))
def test_an_area_lies_between_the_lowest_and_the_highest_value(steps: list[tuple[int, float]], share: float) -> None:
    curve, x = [(0.0, 0.5)], 0.0
    for width, y in steps:
        x += width
        curve.append((x, y))
    values = [y for _, y in curve]
    assert min(values) - 1e-9 <= area(curve, share * x) <= max(values) + 1e-9
    flat = [(x, 0.25) for x, _ in curve]
    assert area(flat, share * x) == pytest.approx(0.25)


def test_a_curve_is_read_from_the_metrics_of_a_run() -> None:
    nan = math.nan
    metrics = pd.DataFrame(
        {
            "step": [1, 2, 3, 4, 5],
            "executions": [10.0, 7.0, 8.0, 0.0, 5.0],
            "kept_out_valid": [nan, 0.5, 0.6, 0.7, nan],
            "kept_out_valid_start": [0.1, nan, nan, nan, nan],
        }
    )
    # Step 4 ran nothing new: its value replaces that of step 3 at the same number of executions.
    assert kept_out_curve(metrics, "valid") == [(0.0, 0.1), (17.0, 0.5), (25.0, 0.7)]
    assert kept_out_curve(metrics, "reward") == []


def test_pairs_are_those_seeds_that_both_have() -> None:
    pairs, mean, bounds = difference_to_first({0: 0.5, 1: 0.7, 2: 0.1}, {0: 0.4, 1: 0.4, 3: 0.9})
    assert (pairs, mean) == (2, pytest.approx(-0.2))
    assert bounds == pytest.approx([-0.3, -0.1]), "of two values the bootstrap's ends are the values themselves"
    assert difference_to_first({0: 0.5}, {0: 0.5}) == (1, 0.0, None)
    assert difference_to_first({0: 0.5}, {1: 0.5}) == (0, None, None)


def test_equal_differences_leave_no_doubt() -> None:
    _, mean, bounds = difference_to_first(dict.fromkeys(range(5), 0.25), dict.fromkeys(range(5), 0.75))
    assert mean == 0.5
    assert bounds == [0.5, 0.5]
