"""Trajectory-wise outcome GRPO: whole attempts as episodes, and one outcome for all their turns.

What AceGRPO is compared with: from a start, each member of a group goes on from where its own action has led, draft →
debug or improve, and all tokens of its turns get the same advantage, that of the episode's outcome within the group.
How an agent goes on is that of evaluation (`attempts.py`), and so is which submission counts; that the outcome is the
reward of that submission is our choice, for the paper names none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from workbench.agent.rollout import Rollout
from workbench.learning.attempts import Attempt
from workbench.tasks.task import Task
from workbench.types import Group, State, Turn

Act = Callable[[Sequence[State], int], Rollout]
"""(states, number of the turn) → one action in each."""


@dataclass
class Episode:
    """One member of a group on its way."""

    attempt: Attempt
    turns: list[Turn]

    @property
    def outcome(self) -> Turn:
        """The turn whose submission is the episode's: the one chosen by its own score; none: the last turn.

        Of turns with the same submission the first, for handing it in again is no other outcome.
        """
        best = self.attempt.best_turn
        if best is None:
            return self.turns[-1]
        return next(
            turn
            for turn in self.turns
            if turn.feedback.valid and turn.feedback.submission_sha == best.feedback.submission_sha
        )


def run_episodes(
    first: Rollout, tasks: Mapping[str, Task], turns: int, act: Act
) -> tuple[list[Rollout], list[Episode]]:
    """Go on from the turns of `first`, groups of G in starts, until each episode has `turns` turns.

    Returns the further rollouts, groups of one whose turns carry the trajectory and the stage that they belong to, and
    all episodes, in the order of the groups and their members. An episode ends early where the executor lost its
    program, or where its prompt no longer fits.
    """
    episodes = []
    for group, outcomes in zip(first.groups, first.outcomes, strict=True):
        for member, (turn, outcome) in enumerate(zip(group.turns, outcomes, strict=True)):
            attempt = Attempt(tasks[group.state.task], member, group.state)
            attempt.advance(turn, outcome)
            episodes.append(Episode(attempt, [turn]))
    more: list[Rollout] = []
    active = episodes
    for number in range(2, turns + 1):
        active = [episode for episode in active if not episode.attempt.lost]
        if not active:
            break
        result = act([episode.attempt.state for episode in active], number)
        active = [active[index] for index in result.kept]
        groups = [_named(group, episode) for group, episode in zip(result.groups, active, strict=True)]
        for group, outcomes, episode in zip(groups, result.outcomes, active, strict=True):
            episode.attempt.advance(group.turns[0], outcomes[0])
            episode.turns.append(group.turns[0])
        more.append(replace(result, groups=tuple(groups)))
    return more, episodes


def _named(group: Group, episode: Episode) -> Group:
    """The group of one more turn, with the names that it has in its episode."""
    kind = group.state.kind
    occurrence = 1 + sum(turn.state.kind is kind for turn in episode.turns)
    turn = replace(group.turns[0], trajectory_id=episode.turns[0].trajectory_id, stage=f"{kind.value}#{occurrence}")
    return replace(group, turns=(turn,))


def by_outcome(starts: Sequence[Group], scored: Sequence[Group], episodes: Sequence[Episode]) -> list[Group]:
    """The groups of the starts, each turn with the reward of its episode's outcome; None where a turn was lost.

    `scored`: all groups of the step with their rewards, the starts among them.
    """
    rewards = {(turn.trajectory_id, turn.stage): turn.reward for group in scored for turn in group.turns}
    found = {}
    for episode in episodes:
        last = episode.outcome
        found[last.trajectory_id] = None if episode.attempt.lost else rewards[last.trajectory_id, last.stage]
    return [
        replace(group, turns=tuple(replace(turn, reward=found[turn.trajectory_id]) for turn in group.turns))
        for group in starts
    ]


def spread(
    starts: Sequence[Group], advantages: Sequence[Sequence[float | None]], groups: Sequence[Group]
) -> list[list[float | None]]:
    """The advantage of each member's episode, for every turn of `groups`; `advantages` are those of the starts."""
    of_trajectory = {
        turn.trajectory_id: advantage
        for group, values in zip(starts, advantages, strict=True)
        for turn, advantage in zip(group.turns, values, strict=True)
    }
    return [[of_trajectory[turn.trajectory_id] for turn in group.turns] for group in groups]
