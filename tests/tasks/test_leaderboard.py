"""Medals and ranks by mle-bench's rule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.tasks.leaderboard import above_median, human_rank, medal, medal_positions, thresholds


@pytest.mark.parametrize(
    ("entries", "positions"),
    [
        (1, (1, 1, 1)),
        (10, (1, 2, 4)),
        (60, (6, 12, 24)),
        (99, (9, 19, 39)),
        (100, (10, 20, 40)),
        (249, (10, 49, 99)),
        (250, (10, 50, 100)),
        (999, (11, 50, 100)),
        (1000, (12, 50, 100)),
        (5000, (20, 250, 500)),
    ],
)
def test_positions_of_the_last_medals(entries: int, positions: tuple[int, int, int]) -> None:
    assert medal_positions(entries) == positions


@pytest.mark.parametrize("up", [True, False])
def test_a_score_at_the_threshold_wins(up: bool) -> None:
    sign = 1 if up else -1
    board = thresholds([sign * (10.0 - place) for place in range(10)])
    assert (board.gold, board.silver, board.bronze) == (sign * 10.0, sign * 9.0, sign * 7.0)
    assert board.median == sign * 5.5
    tiny = sign * 1e-9
    for name, value in (("gold", board.gold), ("silver", board.silver), ("bronze", board.bronze)):
        assert medal(value, board, up) == name
    assert medal(board.gold - tiny, board, up) == "silver"
    assert medal(board.bronze - tiny, board, up) is None
    assert above_median(board.median + tiny, board, up)
    assert not above_median(board.median, board, up)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60), st.floats(-1e6, 1e6), st.booleans())
def test_rank_is_the_share_that_is_not_better(scores: list[float], score: float, up: bool) -> None:
    ordered = sorted(scores, reverse=up)
    better = sum(other > score if up else other < score for other in ordered)
    assert human_rank(score, ordered, up) == pytest.approx(1 - better / len(ordered))


def test_an_empty_board_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one score"):
        thresholds([])
