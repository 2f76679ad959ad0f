"""What makes a state worth choosing: potentials P of a group's rewards, and the law by which states are drawn."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from workbench.config import Config
from workbench.learning.advantages import FLAT, mean_std
from workbench.learning.ranking import PROPORTIONAL, UNIFORM, ZIPF, Draw
from workbench.types import Group


class Rewards(NamedTuple):
    """Statistics of one group's scorable rewards, clipped to [0, 1]; std with ddof 0, 0 when below `FLAT`."""

    scored: int
    mean: float
    std: float
    best: float


def learnability(rewards: Rewards, config: Config) -> float:
    """(2·std)^a · (1 - mean)^b in [0, 1]; for rewards 0/1 with a = b = 1 it peaks where a quarter succeeds."""
    return (2 * rewards.std) ** config.std_exponent * (1 - rewards.mean) ** config.headroom_exponent


def variance(rewards: Rewards, config: Config) -> float:
    """p(1 - p) of the mean reward p (learnability of Foster et al. 2025, for rewards 0/1)."""
    return rewards.mean * (1 - rewards.mean)


def regret(rewards: Rewards, config: Config) -> float:
    """Best seen minus mean; for rewards 0/1 that is 1[any success] - p (Frontier Learning)."""
    return rewards.best - rewards.mean


class Strategy(NamedTuple):
    """What P is, and how states are drawn by it."""

    potential: Callable[[Rewards, Config], float]
    draw: Draw


STRATEGIES: dict[str, Strategy] = {
    "acegrpo": Strategy(learnability, ZIPF),
    "uniform": Strategy(learnability, UNIFORM),
    "learnability": Strategy(learnability, PROPORTIONAL),
    "variance": Strategy(variance, PROPORTIONAL),
    "regret": Strategy(regret, ZIPF),
    # Its point, drawing again for flat groups, is `flat_handling`; the choice itself is uniform.
    "dapo": Strategy(learnability, UNIFORM),
}


def flat_handling(config: Config) -> str:
    """What becomes of groups of equal rewards: `keep`, `drop` or `redraw`."""
    if config.flat_groups != "auto":
        return config.flat_groups
    return "redraw" if config.strategy == "dapo" else "keep"


def focus(step: int, total_steps: int, config: Config) -> float:
    """ρ(t): rises linearly from 0 to `rho_end` over the first `rho_ramp` share of the steps, then stays."""
    ramp = config.rho_ramp * total_steps
    return config.rho_end * min(1.0, step / ramp) if ramp > 0 else config.rho_end


def reward_statistics(group: Group) -> Rewards | None:
    """None with fewer than two scorable rewards: one says nothing of the spread."""
    rewards = [min(max(reward, 0.0), 1.0) for reward in group.rewards if math.isfinite(reward)]
    if len(rewards) < 2:
        return None
    mean, std = mean_std(rewards)
    return Rewards(len(rewards), mean, std if std >= FLAT else 0.0, max(rewards))


def teaches(group: Group) -> bool:
    """Whether a group's rewards differ, so that it has a gradient."""
    rewards = reward_statistics(group)
    return rewards is not None and rewards.std > 0
