"""Whether a reference board is fit to measure skill: more than its files being sound, which `check` proves.

Embedded and synthetic tasks must pass; a small board of one's own need not.
"""

from __future__ import annotations

from typing import Any

from workbench.tasks.leaderboard import better
from workbench.tasks.mle import MleTask, read_config

DISTINCT = 20
"""Fewest different scores on a board."""
LARGEST_TIE = 0.10
"""Largest share of a board that may have one and the same score."""
LEAD = 3.0
"""Least lead of the middle expert pipeline over the middle default one, in paired standard errors."""


def weak_board(task: MleTask) -> str | None:
    """The first gate that the board does not pass, as one sentence."""
    scores, config = task.scores, read_config(task.folder)
    if len(set(scores)) < DISTINCT:
        return f"the board has {len(set(scores))} different scores, at least {DISTINCT} are needed."
    tie = max(map(scores.count, scores)) / len(scores)
    if tie > LARGEST_TIE:
        return f"{tie:.0%} of the board have one and the same score, at most {LARGEST_TIE:.0%} may."
    lead = config.get("expert_lead") or {"gap": 0.0, "paired_se": 0.0}
    if not lead["gap"] >= LEAD * lead["paired_se"] > 0:
        return f"experts lead defaults by {lead['gap']} ± {lead['paired_se']}, less than {LEAD:g} standard errors."
    return above_ceiling(task, config)


def above_ceiling(task: MleTask, config: dict[str, Any]) -> str | None:
    """The board's best against the score of the best possible predictor, where config.yaml states that `ceiling`."""
    ceiling = config.get("ceiling")
    if ceiling is None:
        return None
    if better(task.scores[0], ceiling["final"], task.higher_is_better):
        return f"the board's best, {task.scores[0]}, is better than the noise allows ({ceiling['final']})."
    return None
