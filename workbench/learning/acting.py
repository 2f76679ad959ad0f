"""The first five stages of a step: choose states, act in them, score, let the curriculum know and grow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from workbench.agent.environment import Environment
from workbench.agent.generate import Generator
from workbench.agent.policy import Policy
from workbench.agent.rollout import Rollout, refuse_lost, rollout
from workbench.config import Config, reward_weights
from workbench.learning.episodes import by_outcome, run_episodes
from workbench.learning.metrics import StageTimer
from workbench.learning.rewards import score_groups
from workbench.learning.sampler import Curriculum
from workbench.learning.strategies import flat_handling, teaches
from workbench.types import Group, State

Report = Callable[[int, int], None]
"""(actions done, actions in all)."""


@dataclass
class Acted:
    """What a step has to learn from."""

    rollouts: list[Rollout] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    """All turns, scored."""
    starts: list[Group] = field(default_factory=list)
    """The groups within which advantages are taken, with the rewards that count: the same as `groups`, or those that
    the episodes began with, with their outcomes."""
    drawn: list[int] = field(default_factory=list)
    """Groups of each draw; all but the first replace flat ones."""


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts: a policy and its sampler, in an environment, where a curriculum says."""

    policy: Policy
    generator: Generator
    environment: Environment
    curriculum: Curriculum
    report: Report

    def act(self, config: Config, step: int, timer: StageTimer) -> Acted:
        """The step's rollouts and scored groups. Where flat groups are redrawn, exactly as many states are chosen again
        as groups that teach are missing, until none is or `redraw_limit` groups were added; what is still missing then
        is missing, and `groups_used` says so."""
        acted = Acted()
        wanted, left = config.groups, config.redraw_limit if flat_handling(config) == "redraw" else 0
        while wanted > 0:
            with timer("choose"):  # 1 where to learn now
                states = self.curriculum.choose(step, wanted)
            if not states:
                break
            self._draw(config, step, states, timer, acted)
            wanted = min(config.groups - sum(map(teaches, acted.starts)), left)
            left -= wanted
        return acted

    def _draw(self, config: Config, step: int, states: Sequence[State], timer: StageTimer, acted: Acted) -> None:
        draw = len(acted.drawn)
        path = (config.seed, "train", step, *((f"redraw {draw}",) if draw else ()))
        with timer("generate"):  # 2 act; the sandbox executes while the rest of the batch is generated
            first = self._rollout(config, states, path, config.group_size)
            more, episodes = run_episodes(
                first,
                self.environment.tasks,
                config.episode_turns,
                lambda next_states, turn: self._rollout(config, next_states, (*path, f"turn {turn}"), 1),
            )
        for result in (first, *more):
            timer.split("generate", "execute", result.waited_s)
        with timer("score"):  # 3 components, then a total in [0, 1]
            groups = [group for result in (first, *more) for group in result.groups]
            weights = reward_weights(config.reward)
            scored = score_groups(groups, self.environment.tasks, weights, self.environment.known)
            starts = by_outcome(first.groups, scored, episodes)
        refuse_lost(self.environment, scored)
        with timer("curriculum"):  # 4 learnability, and 5 x' = Φ(x, y, f)
            self.curriculum.drop(step, [state for index, state in enumerate(states) if index not in first.kept])
            self.curriculum.observe(step, starts)
            self.curriculum.add(step, scored)
        acted.rollouts += [first, *more]
        acted.groups += scored
        acted.starts += starts
        acted.drawn.append(len(first.groups))

    def _rollout(self, config: Config, states: Sequence[State], path: Sequence[object], size: int) -> Rollout:
        self.report(0, len(states) * size)
        return rollout(
            self.policy,
            self.generator,
            self.environment,
            states,
            config,
            seed_path=path,
            group_size=size,
            on_action=self.report,
        )
