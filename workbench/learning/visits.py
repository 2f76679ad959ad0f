"""Does P find the states from which a policy learns? Each state is visited twice, independently, by a policy that stays
as it is.

States are whole tasks and what the policy's own drafts lead to. The first visit gives every strategy its P, the second
says what choosing by it would have brought: flat groups teach nothing, and the norm of a group's gradient says how much
others do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from operator import itemgetter

import torch
from scipy import stats

from workbench.agent.environment import Environment
from workbench.agent.generate import HFGenerator
from workbench.agent.policy import Policy
from workbench.agent.rollout import rollout
from workbench.config import Config, reward_weights
from workbench.learning.advantages import group_advantages
from workbench.learning.batch import make_samples
from workbench.learning.buffer import child, identity
from workbench.learning.rewards import score_groups
from workbench.learning.strategies import STRATEGIES, Rewards, Strategy, reward_statistics
from workbench.learning.update import update
from workbench.types import Group, Kind, State, WorkbenchError

LEAST = 8
"""States below which nothing can be said."""
ROOT_SHARE = 4
"""One state in so many is a whole task; there are as many as tasks at most."""

POTENTIALS: dict[str, Callable[[Rewards, Config], float]] = {
    **{name: STRATEGIES[name].potential for name in ("acegrpo", "variance", "regret")},
    "std": lambda rewards, _: rewards.std,
}
"""The different P of the strategies, and the standard deviation alone."""


@dataclass(frozen=True, slots=True)
class Visit:
    """What one group of a state came to."""

    rewards: Rewards
    grad_norm: float


@dataclass(frozen=True, slots=True)
class Visitor:
    """Acts with a policy that stays as it is."""

    policy: Policy
    environment: Environment
    config: Config
    number: int
    name: str
    tell: Callable[[str], None]

    def visit_twice(self, count: int) -> list[tuple[Visit, Visit]]:
        """Two visits of each of about `count` states; those with a visit that was not measured are left out."""
        draw = random.Random(f"sampler/{self.number}")
        names = sorted(self.environment.tasks)
        roots = [State(task, Kind.DRAFT) for task in draw.sample(names, min(len(names), max(2, count // ROOT_SHARE)))]
        children: dict[str, State] = {}
        for group in self._act(roots, "drafts"):
            grown = [state for turn in group.turns if (state := child(turn)) is not None]
            children |= {identity(state): state for state in grown}
        chosen = draw.sample(list(children.values()), min(len(children), count - len(roots)))
        visits = [self._visits([*roots, *chosen], name) for name in ("first visits", "second visits")]
        return [(visits[0][state_id], visits[1][state_id]) for state_id in visits[0] if state_id in visits[1]]

    def _visits(self, states: Sequence[State], name: str) -> dict[str, Visit]:
        visits = {}
        for group in self._act(states, name):
            rewards = reward_statistics(group)
            if rewards is not None:
                visits[group.state.id] = Visit(rewards, self._grad_norm(group))
        return visits

    def _act(self, states: Sequence[State], name: str) -> list[Group]:
        result = rollout(
            self.policy,
            HFGenerator(self.policy),
            self.environment,
            states,
            self.config,
            seed_path=("bench sampler", self.number, name),
            on_action=lambda done, total: self.tell(f"{self.name}: {name} {done} of {total}"),
        )
        weights = reward_weights(self.config.reward)
        return score_groups(result.groups, self.environment.tasks, weights, self.environment.known)

    def _grad_norm(self, group: Group) -> float:
        rewards = [turn.reward.total if turn.reward else None for turn in group.turns]
        advantages, _ = group_advantages([rewards], self.config.advantage_scale)
        samples, _ = make_samples([group], advantages, self.policy.version, self.config.max_staleness)
        still = torch.optim.SGD(list(self.policy.trainable()), lr=0.0)
        return update(self.policy, still, samples, self.config).get("grad_norm", 0.0)


def judge(pairs: Sequence[tuple[Visit, Visit]], config: Config) -> dict[str, float]:
    """What each strategy's P of the first visits is worth at the second ones. What has no meaning, such as the
    correlation of what is all the same, is left out. Raises WorkbenchError for fewer than `LEAST` pairs."""
    if len(pairs) < LEAST:
        raise WorkbenchError(
            f"Only {len(pairs)} states were measured twice: expected {LEAST} or more, raise --states or --group-size."
        )
    before, after = [first.rewards for first, _ in pairs], [second for _, second in pairs]
    flat, norms = [visit.rewards.std == 0 for visit in after], [visit.grad_norm for visit in after]
    shares = {n: _flat_share(s, before, flat, config) for n, s in STRATEGIES.items() if n != "dapo"}
    found = {f"flat_{name}": share for name, share in shares.items()}
    found |= {f"fewer_flat_{n}": shares["uniform"] / s for n, s in shares.items() if n != "uniform" and s}
    for name, potential in POTENTIALS.items():
        values = [potential(rewards, config) for rewards in before]
        if len(set(values)) > 1 and len(set(norms)) > 1:
            found[f"spearman_{name}"] = float(stats.spearmanr(values, norms).statistic)
    return found


def _flat_share(strategy: Strategy, rewards: Sequence[Rewards], flat: Sequence[bool], config: Config) -> float:
    """How likely a group drawn by P of `rewards`, at full ρ, is `flat`; which of equal P comes first is left open."""
    ranked = sorted(zip([strategy.potential(each, config) for each in rewards], flat, strict=True), reverse=True)
    law = iter(strategy.draw.chances([potential for potential, _ in ranked], config.rho_end))
    share = 0.0
    for _, equal in groupby(ranked, key=itemgetter(0)):
        ends = [end for _, end in equal]
        share += sum(islice(law, len(ends))) * sum(ends) / len(ends)
    return config.epsilon * sum(flat) / len(flat) + (1 - config.epsilon) * share
