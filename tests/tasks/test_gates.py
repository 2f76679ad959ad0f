"""Every gate of a board closes where it should."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from workbench.tasks.check import PROOFS
from workbench.tasks.gates import weak_board
from workbench.tasks.mle import load_task
from workbench.types import WorkbenchError


@pytest.fixture
def board(copied: Path) -> Callable[..., Path]:
    """A task with these scores (F1), this lead, and this ceiling."""

    def make(scores: list[float], gap: float = 0.31, ceiling: object = None) -> Path:
        ranked = sorted(scores, reverse=True)
        lines = [f"{rank},{score},default,x" for rank, score in enumerate(ranked, start=1)]
        (copied / "leaderboard.csv").write_text("\n".join(["rank,score,stratum,pipeline", *lines]) + "\n")
        path = copied / "config.yaml"
        config = yaml.safe_load(path.read_text())
        config |= {"expert_lead": {"gap": gap, "paired_se": 0.1}, "dummy_score": {"reward": 0.1, "final": 0.1}}
        config |= {"ceiling": ceiling} if ceiling is not None else {}
        del config["thresholds"], config["sha256"]
        path.write_text(yaml.safe_dump(config))
        return copied

    return make


SPREAD = [round(0.2 + k / 100, 2) for k in range(60)]


def test_a_good_board_passes(board) -> None:
    assert weak_board(load_task(board(SPREAD, ceiling={"reward": 0.8, "final": 0.79}))) is None


@pytest.mark.parametrize(
    ("scores", "gap", "ceiling", "sentence"),
    [
        (SPREAD[:19] * 3, 0.31, None, "the board has 19 different scores, at least 20 are needed."),
        ([*SPREAD[:53], *[0.5] * 6], 0.31, None, "12% of the board have one and the same score, at most 10% may."),
        (SPREAD, 0.29, None, "experts lead defaults by 0.29 ± 0.1, less than 3 standard errors."),
        (
            SPREAD,
            0.31,
            {"reward": 0.9, "final": 0.78},
            "the board's best, 0.79, is better than the noise allows (0.78).",
        ),
    ],
)
def test_a_weak_board_is_one_sentence(scores, gap, ceiling, sentence: str, board) -> None:
    task = load_task(board(scores, gap, ceiling))
    assert weak_board(task) == sentence
    assert PROOFS["below the ceiling"](task) == (sentence if ceiling else None)


@pytest.mark.parametrize("ceiling", [0.8, {"final": 0.8}, {"reward": 0.8, "final": "high"}])
def test_a_ceiling_is_a_number_per_split(ceiling: object, board) -> None:
    with pytest.raises(WorkbenchError, match=r"ceiling=.* expected finite numbers for reward and final"):
        load_task(board(SPREAD, ceiling=ceiling))
