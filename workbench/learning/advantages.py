"""From the rewards of a group to advantages: the group is its own baseline.

Pure Python: a step has some dozens of groups, and exact sums (`math.fsum`) are worth more here than speed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from workbench.types import WorkbenchError

FLAT = 1e-6
"""A standard deviation (ddof 0) below this counts as 0: rounding of equal rewards must not become a signal."""


def mean_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation with ddof 0 of at least one value."""
    mean = math.fsum(values) / len(values)
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))


def group_advantages(
    groups: Sequence[Sequence[float | None]], scale: Literal["group", "batch", "none"]
) -> tuple[list[list[float | None]], dict[str, float]]:
    """A = (r - mean of its group) / divisor for every member of every group; the result has the shape of the input.

    One reward per episode, in [0, 1]; None is unscorable: it enters no mean, and its advantage is None. `scale`:
    `group` divides by the group's own standard deviation (GRPO, DeepSeekMath 2024), which favours nearly solved and
    nearly failed states; `batch` divides by that of all rewards of the step (as ScaleRL 2025 does); `none` by 1
    (Dr. GRPO 2025). Standard deviations have ddof 0. A flat group (`FLAT`) has advantages of exactly 0. A group with
    fewer than 2 scorable members has no baseline: all its advantages are None.

    Metrics (absent when nothing stands behind them): reward_mean and reward_std_batch over all scorable rewards;
    reward_std_within, the mean of the groups' own standard deviations, which is the spread that teaches;
    advantage_abs_mean; flat_share of the groups with a baseline; groups_used (with a spread), groups_dropped (without
    a baseline), unscorable (members).
    """
    if scale not in ("group", "batch", "none"):
        raise WorkbenchError(f"scale={scale!r} is no scale of advantages: expected group, batch or none.")
    scored = [[reward for reward in group if reward is not None] for group in groups]
    everything = [reward for group in scored for reward in group]
    statistics = [mean_std(group) if len(group) >= 2 else None for group in scored]
    std_batch = mean_std(everything)[1] if everything else 0.0
    advantages: list[list[float | None]] = []
    for group, known in zip(groups, statistics, strict=True):
        if known is None:
            advantages.append([None] * len(group))
            continue
        mean, std = known
        divisor = {"group": std, "batch": std_batch, "none": 1.0}[scale]
        flat = std < FLAT
        advantages.append([None if r is None else 0.0 if flat else (r - mean) / max(divisor, FLAT) for r in group])
    return advantages, _metrics(groups, everything, statistics, advantages)


def _metrics(
    groups: Sequence[Sequence[float | None]],
    everything: Sequence[float],
    statistics: Sequence[tuple[float, float] | None],
    advantages: Sequence[Sequence[float | None]],
) -> dict[str, float]:
    spreads = [known[1] for known in statistics if known is not None]
    used = sum(std >= FLAT for std in spreads)
    metrics = {
        "groups_used": float(used),
        "groups_dropped": float(len(groups) - len(spreads)),
        "unscorable": float(sum(len(group) for group in groups) - len(everything)),
    }
    if everything:
        metrics["reward_mean"], metrics["reward_std_batch"] = mean_std(everything)
    if spreads:
        known_advantages = [abs(value) for group in advantages for value in group if value is not None]
        metrics["reward_std_within"] = math.fsum(spreads) / len(spreads)
        metrics["flat_share"] = 1 - used / len(spreads)
        metrics["advantage_abs_mean"] = math.fsum(known_advantages) / len(known_advantages)
    return metrics
