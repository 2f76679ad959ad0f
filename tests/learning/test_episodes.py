"""Episodes: each member goes on from its own action, and the outcome of the whole is every turn's reward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from workbench.agent.environment import Outcome
from workbench.agent.rollout import Rollout
from workbench.config import make_config
from workbench.learning.episodes import by_outcome, run_episodes, spread
from workbench.learning.rewards import score_groups
from workbench.tasks.catalog import load_tasks
from workbench.tasks.mle import MleTask
from workbench.types import Action, Feedback, Group, Kind, Reward, State, StopReason, Turn, Verdict, WorkbenchError

Plan = tuple[float | None, float | None]
"""(hidden score; None: the script fails, own score) of one action."""


@pytest.fixture(scope="module")
def task() -> MleTask:
    """A task whose metric is better when lower."""
    return next(task for task in load_tasks("all") if not task.higher_is_better)


def rolled(states: Sequence[State], plans: Sequence[Sequence[Plan | None]], name: str) -> Rollout:
    """One group for each state whose turns come out as planned; a plan of None is lost by the executor."""
    groups, outcomes = [], []
    for index, (state, members) in enumerate(zip(states, plans, strict=True)):
        turns, outs = [], []
        for member, plan in enumerate(members):
            code = f"print({name!r}, {index}, {member})"
            score, own = plan or (None, None)
            verdict = Verdict.OK if score is not None else Verdict.RUNTIME_ERROR if plan else Verdict.INFRASTRUCTURE
            feedback = Feedback(verdict, code, score=score, own_score=own, reason=f"KeyError: '{name}'")
            if score is not None:
                feedback = replace(feedback, submission_sha=f"of {score}")
            action = Action(code, (5, 6), (-1.0, -1.0), 0, StopReason.EOS)
            trajectory = f"{name}/{index}/{member}"
            turns.append(Turn(state, action, feedback, None, f"{name}/{index}", trajectory, f"{state.kind.value}#1"))
            outs.append(Outcome(feedback, b"" if score is not None else None, executed=True))
        groups.append(Group(f"{name}/{index}", state, (1, 2), tuple(turns)))
        outcomes.append(tuple(outs))
    return Rollout(tuple(groups), tuple(range(len(states))), tuple(outcomes), len(groups), (), 0.0)


def rewarded(groups: Sequence[Group], values: Sequence[float]) -> list[Group]:
    """The groups with these totals, turn by turn."""
    left = iter(values)
    return [
        Group(g.id, g.state, g.prompt_ids, tuple(_with(turn, Reward(next(left))) for turn in g.turns)) for g in groups
    ]


def _with(turn: Turn, reward: Reward) -> Turn:
    return Turn(turn.state, turn.action, turn.feedback, reward, turn.group_id, turn.trajectory_id, turn.stage)


def test_each_member_goes_on_from_its_own_action(task: MleTask) -> None:
    first = rolled([State(task.id, Kind.DRAFT)], [[(None, None), (3.0, 3.0)]], "first")
    asked: list[list[Kind]] = []

    def act(states: Sequence[State], turn: int) -> Rollout:
        asked.append([state.kind for state in states])
        plans: list[Sequence[Plan | None]] = [[(None, None)], [(2.0, 2.0)]]
        return rolled(states, plans, f"turn {turn}")

    more, episodes = run_episodes(first, {task.id: task}, 3, act)
    assert asked == [[Kind.DEBUG, Kind.IMPROVE], [Kind.DEBUG, Kind.IMPROVE]]
    assert [[turn.stage for turn in episode.turns] for episode in episodes] == [
        ["draft#1", "debug#1", "debug#2"],
        ["draft#1", "improve#1", "improve#2"],
    ]
    assert [[turn.trajectory_id for turn in episode.turns] for episode in episodes] == [
        ["first/0/0"] * 3,
        ["first/0/1"] * 3,
    ]
    assert [[group.turns[0].stage for group in result.groups] for result in more] == [
        ["debug#1", "improve#1"],
        ["debug#2", "improve#2"],
    ]
    parents = [turn.state.code for turn in episodes[0].turns]
    assert parents == ["", "print('first', 0, 0)", "print('turn 2', 0, 0)"]


def test_the_outcome_is_that_of_the_submission_that_would_count(task: MleTask) -> None:
    """The best own score; none valid: the last turn. Lost: none at all."""
    first = rolled([State(task.id, Kind.DRAFT)], [[(9.0, 1.0), (None, None), (None, None), (5.0, 5.0)]], "first")

    def act(states: Sequence[State], turn: int) -> Rollout:
        return rolled(states, [[(1.0, 4.0)], [(None, None)], [None], [(4.0, 4.0)]], "second")

    more, episodes = run_episodes(first, {task.id: task}, 2, act)
    groups = [*first.groups, *more[0].groups]
    scored = rewarded(groups, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8])
    (start,) = by_outcome(first.groups, scored, episodes)
    assert [turn.reward and turn.reward.total for turn in start.turns] == [0.1, 0.6, None, 0.8]
    assert [turn.stage for turn in start.turns] == ["draft#1"] * 4
    found = spread([start], [[-1.0, 0.5, None, 2.0]], groups)
    assert found == [[-1.0, 0.5, None, 2.0], [-1.0], [0.5], [None], [2.0]]


def test_handing_the_same_submission_in_again_is_no_other_outcome(task: MleTask) -> None:
    first = rolled([State(task.id, Kind.DRAFT)], [[(2.0, None), (3.0, None)]], "first")
    more, episodes = run_episodes(
        first, {task.id: task}, 2, lambda states, _: rolled(states, [[(2.0, None)], [(2.0, None)]], "second")
    )
    scored = rewarded([*first.groups, *more[0].groups], [0.9, 0.3, 0.1, 0.8])
    (start,) = by_outcome(first.groups, scored, episodes)
    assert [turn.reward and turn.reward.total for turn in start.turns] == [0.9, 0.8]


def test_an_episode_ends_where_a_turn_was_lost_or_its_prompt_does_not_fit(task: MleTask) -> None:
    first = rolled([State(task.id, Kind.DRAFT)], [[(9.0, 1.0), (None, None), None]], "first")
    sizes = []

    def act(states: Sequence[State], turn: int) -> Rollout:
        sizes.append(len(states))
        result = rolled(states[1:], [[(None, None)]] * (len(states) - 1), f"turn {turn}")
        return Rollout(result.groups, tuple(range(1, len(states))), result.outcomes, 1, (states[0],), 0.0)

    _, episodes = run_episodes(first, {task.id: task}, 5, act)
    assert sizes == [2, 1]
    assert [len(episode.turns) for episode in episodes] == [1, 2, 1]


def test_of_one_turn_the_outcome_is_its_reward(task: MleTask) -> None:
    first = rolled([State(task.id, Kind.DRAFT)] * 2, [[(9.0, 1.0), (None, None)], [None, (2.0, None)]], "first")
    scored = score_groups(first.groups, {task.id: task})
    more, episodes = run_episodes(first, {task.id: task}, 1, lambda *_: pytest.fail("no turn is left"))
    assert more == []
    assert by_outcome(first.groups, scored, episodes) == scored


def test_a_buffer_and_episodes_exclude_one_another() -> None:
    with pytest.raises(WorkbenchError, match=r"episode_turns=3 goes on from each action at once.*set buffer=false"):
        make_config(episode_turns=3)
    with pytest.raises(WorkbenchError, match="leave gain out of reward"):
        make_config(episode_turns=3, buffer=False, reward="ladder:0.8,gain:0.2")
    assert make_config(episode_turns=3, buffer=False).episode_turns == 3
