"""Medals and ranks by mle-bench's rule."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.tasks.leaderboard import above_median, human_rank, medal, medal_positions, read_leaderboard, thresholds
from workbench.types import WorkbenchError


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


@pytest.mark.parametrize("up", [True, False])
@pytest.mark.parametrize("entries", [1, 2, 9, 10, 99, 100, 249, 250, 999, 1000, 4999])
def test_medals_end_at_their_positions_on_boards_of_any_size(entries: int, up: bool) -> None:
    """A score between two entries wins the medal of the place above which it stands."""
    scores = [(entries - place) * (1.0 if up else -1.0) for place in range(entries)]
    board = thresholds(scores)
    gold, silver, bronze = medal_positions(entries)
    for place, score in enumerate(scores, start=1):
        won = "gold" if place <= gold else "silver" if place <= silver else "bronze" if place <= bronze else None
        assert medal(score, board, up) == won
        if place in (gold, silver, bronze):  # a little worse than the last winner
            after = medal(score - (0.5 if up else -0.5), board, up)
            assert after == ("silver" if place == gold < silver else "bronze" if place < bronze else None)


@pytest.mark.parametrize("up", [True, False])
def test_a_block_of_ties_wins_together(up: bool) -> None:
    """Places 8 to 14 of 100 tie: gold ends at place 10, so all seven win gold, and silver is theirs too."""
    sign = 1.0 if up else -1.0
    scores = [sign * value for value in [9.0] * 7 + [8.0] * 7 + [7.0] * 86]
    board = thresholds(scores)
    assert (board.gold, board.silver, board.bronze) == (sign * 8.0, sign * 7.0, sign * 7.0)
    assert medal(sign * 8.0, board, up) == "gold"
    assert medal(sign * 7.5, board, up) == "silver"
    assert human_rank(sign * 8.0, scores, up) == pytest.approx(0.93)
    assert not above_median(sign * 7.0, board, up)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            b"rank,score\n1,0.5\n2,nan\n",
            "is no leaderboard: expected a column 'score' with one finite number per line.",
        ),
        (b"rank,points\n1,0.5\n", "is no leaderboard: expected a column 'score'"),
        (b"rank,score\n1,high\n", "is no leaderboard: expected a column 'score'"),
        (b"rank,score\n", "is no leaderboard: expected a column 'score'"),
        (b"", "is no leaderboard: expected a column 'score'"),
        (b"\xff\xfe", "cannot be read: expected a CSV file with a column 'score'."),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n",
            "is a Git LFS pointer, not the board itself: run `git lfs pull` in its checkout.",
        ),
    ],
)
def test_a_file_that_is_no_board_is_one_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "leaderboard.csv"
    path.write_bytes(content)
    with pytest.raises(WorkbenchError) as refused:
        read_leaderboard(path)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_board_is_read_in_file_order(tmp_path: Path) -> None:
    path = tmp_path / "leaderboard.csv"
    path.write_text("\ufeffteam,score\r\na,0.2\r\nb,0.9\r\n", encoding="utf-8")
    assert read_leaderboard(path) == (0.2, 0.9)
    path.write_text("team,score\nc\x85d\u2028e\x0b,0.3\n", encoding="utf-8")
    assert read_leaderboard(path) == (0.3,), "what ends no line of a CSV file"
    with pytest.raises(WorkbenchError, match=r"none\.csv' cannot be read"):
        read_leaderboard(tmp_path / "none.csv")
