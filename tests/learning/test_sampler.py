"""The curriculum by hand: who is chosen, who rests, what a visit teaches, who inherits what, who must go."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import permutations
from typing import Any

import pytest
from scipy import stats

from workbench.config import Config, make_config
from workbench.learning.ranking import HALF_LIFE
from workbench.learning.sampler import Curriculum
from workbench.types import (
    Action,
    Feedback,
    Group,
    Kind,
    Reward,
    State,
    StopReason,
    Turn,
    Verdict,
    WorkbenchError,
)

STEPS = 100


def settings(**values: Any) -> Config:
    return make_config({"steps": STEPS, **values})


def roots(n: int) -> list[State]:
    return [State(f"task-{i:02d}", Kind.DRAFT) for i in range(n)]


class Shelf(dict[str, State]):
    """What a run keeps of states."""

    def find_states(self, ids: Sequence[str]) -> dict[str, State]:
        return {state_id: self[state_id] for state_id in ids}


def curriculum(n: int = 6, store: Shelf | None = None, **values: Any) -> Curriculum:
    return Curriculum(settings(**values), roots(n), STEPS, store)


def shelf(sampler: Curriculum) -> Shelf:
    return Shelf({state.id: state for state in sampler.drain_states()})


def group(state: State, *rewards: float | None, codes: list[str] | None = None) -> Group:
    """A group with these rewards; without `codes` no action has a script, so that no child comes of it."""
    turns = []
    for member, total in enumerate(rewards):
        code = codes[member] if codes else None
        verdict = Verdict.INFRASTRUCTURE if total is None else Verdict.RUNTIME_ERROR
        feedback = Feedback(verdict, code, reason="NameError: 'x'", score=1.0 if (total or 0) > 0.5 and code else None)
        reward = None if total is None else Reward(total)
        turns.append(Turn(state, Action("x", (1,), (-1.0,), 0, StopReason.EOS), feedback, reward, "g", f"g/{member}"))
    return Group("g", state, (1,), tuple(turns))


def potentials(sampler: Curriculum) -> dict[str, float]:
    return {row["state_id"]: row["potential"] for row in sampler.snapshot()}


# Two rewards x < y have std (y - x)/2 and mean (x + y)/2, so that P = (y - x) · (1 - (x + y)/2):
HALF, THREE_EIGHTHS, EIGHTH, ZERO = (0.0, 1.0), (0.0, 0.5), (0.5, 1.0), (0.0, 0.0)
"""Rewards whose P are 1·0.5, 0.5·0.75, 0.5·0.25 and 0."""


# --- what a visit teaches


def test_potentials_and_their_moving_average_by_hand() -> None:
    sampler = curriculum(4)
    a, b, c, d = roots(4)
    assert potentials(sampler) == dict.fromkeys((a.id, b.id, c.id, d.id), 1.0)
    sampler.observe(1, [group(a, *HALF), group(b, *THREE_EIGHTHS), group(c, *EIGHTH)])
    assert potentials(sampler) == pytest.approx({a.id: 0.5, b.id: 0.375, c.id: 0.125, d.id: 1.0})
    sampler.observe(2, [group(a, *ZERO), group(b, *HALF)])
    assert potentials(sampler) == pytest.approx({a.id: 0.25, b.id: 0.4375, c.id: 0.125, d.id: 1.0})
    slow = curriculum(1, potential_ema=0.1)
    slow.observe(1, [group(a, *HALF)])
    slow.observe(2, [group(a, *ZERO)])
    assert potentials(slow)[a.id] == pytest.approx(0.45)


def test_lost_executions_leave_every_statistic() -> None:
    sampler = curriculum(3)
    a, b, c = roots(3)
    sampler.choose(1, 3)
    sampler.observe(1, [group(a, 0.0, None, 1.0), group(b, 1.0, None), group(c, None, None)])
    assert potentials(sampler) == {a.id: 0.5, b.id: 1.0, c.id: 1.0}
    metrics = sampler.metrics()
    assert metrics["groups_unmeasured"] == 2
    assert metrics["buffer_visited"] == 1


def test_a_group_of_a_state_that_was_evicted_is_counted_and_changes_nothing() -> None:
    sampler = curriculum(2)
    sampler.choose(1, 2)
    before = sampler.snapshot()
    sampler.observe(1, [group(State("task-00", Kind.DEBUG, "gone"), *HALF)])
    assert sampler.snapshot() == before
    assert sampler.metrics()["groups_late"] == 1


def test_the_order_in_which_groups_are_observed_does_not_matter() -> None:
    groups = [group(root, *rewards) for root, rewards in zip(roots(4), (HALF, EIGHTH, ZERO, HALF), strict=True)]
    snapshots = []
    for order in permutations(groups):
        sampler = curriculum(4)
        sampler.choose(1, 4)
        sampler.observe(1, order)
        snapshots.append((sampler.snapshot(), sampler.metrics(), [s.id for s in sampler.choose(9, 2)]))
    assert all(snapshot == snapshots[0] for snapshot in snapshots)


# --- focus


def test_chances_by_hand() -> None:
    """Four ranks at ρ = 1: 1, 1/2, 1/3, 1/4 of 25/12, that is 12, 6, 4, 3 of 25; and ε / 4 each."""
    sampler = curriculum(4, rho_ramp=0.0, tau=0)
    a, b, c, d = roots(4)
    sampler.observe(1, [group(a, *EIGHTH), group(b, *HALF), group(c, *ZERO), group(d, *THREE_EIGHTHS)])
    chances = {row["state_id"]: row["q"] for row in sampler.snapshot()}
    shares = {b.id: 12 / 25, d.id: 6 / 25, a.id: 4 / 25, c.id: 3 / 25}
    assert chances == pytest.approx({name: 0.0125 + 0.95 * share for name, share in shares.items()})
    assert [row["rank"] for row in sampler.snapshot()] == [1, 2, 3, 4]


@pytest.mark.parametrize("strategy", ["acegrpo", "uniform", "learnability", "variance", "regret", "dapo"])
def test_draws_follow_the_chances_that_the_snapshot_shows(strategy: str) -> None:
    sampler = curriculum(7, strategy=strategy, rho_ramp=0.0, tau=0, epsilon=0.2)
    rewards = [HALF, THREE_EIGHTHS, EIGHTH, ZERO, (0.0, 0.2), (0.3, 0.6), (1.0, 1.0)]
    sampler.observe(1, [group(root, *values) for root, values in zip(roots(7), rewards, strict=True)])
    chances = {row["state_id"]: row["q"] for row in sampler.snapshot()}
    assert sum(chances.values()) == pytest.approx(1)
    draws = 4000
    counts = Counter(sampler.choose(step, 1)[0].id for step in range(2, draws + 2))
    statistic = sum((counts[name] - draws * q) ** 2 / (draws * q) for name, q in chances.items())
    assert statistic < stats.chi2.ppf(0.9999, len(chances) - 1)


def test_focus_sharpens_over_the_first_steps() -> None:
    sampler = curriculum(4, tau=0, epsilon=0.0)
    sampler.observe(0, [group(root, 0.0, 0.2 * i) for i, root in enumerate(roots(4))])
    tops = []
    for step in (29, 59, 99):  # the snapshot shows the step after
        sampler.choose(step, 0)
        tops.append(sampler.snapshot()[0]["q"])
    weights = [[rank**-rho for rank in range(1, 5)] for rho in (0.5, 1.0, 1.0)]
    assert tops == pytest.approx([row[0] / sum(row) for row in weights])
    assert curriculum(4).snapshot()[0]["q"] == pytest.approx(0.25, abs=0.01), "nearly uniform at the start"


def test_ties_are_broken_by_chance_once_and_for_all() -> None:
    """Equal P: which state is first differs by seed, and stays as it is within a run."""
    firsts = set()
    for seed in range(8):
        sampler = curriculum(5, seed=seed)
        order = [row["state_id"] for row in sampler.snapshot()]
        sampler.choose(1, 2)
        assert [row["state_id"] for row in sampler.snapshot()] == order
        firsts.add(order[0])
    assert len(firsts) > 1


# --- cooling


def test_a_chosen_state_rests_for_tau_steps() -> None:
    sampler = curriculum(6, tau=2)
    chosen = {step: {state.id for state in sampler.choose(step, 2)} for step in range(1, 8)}
    assert chosen[1] | chosen[2] | chosen[3] == {root.id for root in roots(6)}, "six states, two a step, three steps"
    for step in (4, 5, 6, 7):
        assert chosen[step] == chosen[step - 3], "only those whose rest is over"
        assert sampler.metrics()["choices_released"] == 0


def test_without_cooling_a_state_can_come_at_once_but_never_twice_in_a_step() -> None:
    sampler = curriculum(3, tau=0)
    for step in range(1, 30):
        chosen = [state.id for state in sampler.choose(step, 3)]
        assert len(set(chosen)) == 3


def test_the_least_recently_chosen_are_released_and_what_is_missing_is_counted() -> None:
    sampler = curriculum(3, tau=5)
    first = [state.id for state in sampler.choose(1, 2)]
    (third,) = {root.id for root in roots(3)} - set(first)
    assert [state.id for state in sampler.choose(2, 2)] == [third, first[0]]
    assert sampler.metrics()["choices_released"] == 1
    assert [state.id for state in sampler.choose(3, 2)] == [first[1], third]
    assert [state.id for state in sampler.choose(4, 5)] == [first[0], first[1], third]
    metrics = sampler.metrics()
    assert (metrics["choices_released"], metrics["choices_missing"]) == (3, 2)
    assert metrics["buffer_resting"] == 3


def test_a_second_call_for_a_step_gives_further_states_and_adds_up() -> None:
    sampler = curriculum(5, tau=1)
    first, second = sampler.choose(1, 2), sampler.choose(1, 9)
    assert len({state.id for state in (*first, *second)}) == 5
    assert sampler.metrics()["choices_missing"] == 6
    assert sampler.choose(1, 1) == []


def test_resting_states_have_no_chance_in_the_snapshot() -> None:
    sampler = curriculum(4, tau=1)
    chosen = {state.id for state in sampler.choose(1, 2)}
    rows = {row["state_id"]: row for row in sampler.snapshot()}
    assert {name for name, row in rows.items() if row["resting"]} == chosen
    assert all((row["q"] == 0) == row["resting"] for row in rows.values())
    assert all(row["last_chosen"] == (1 if name in chosen else None) for name, row in rows.items())


def test_a_longer_rest_set_in_a_run_holds_for_those_chosen_before() -> None:
    sampler = curriculum(6, tau=0)
    chosen = {state.id for state in sampler.choose(1, 2)}
    sampler.choose(2, 0)
    assert sampler.metrics()["buffer_resting"] == 0
    sampler.update(settings(tau=4))
    assert {state.id for state in sampler.choose(3, 4)} == {root.id for root in roots(6)} - chosen


def test_a_solved_pool_is_never_empty_and_comes_back() -> None:
    """All tasks solved for 20 steps, then all failing: states are still drawn, and their P rises again."""
    sampler = curriculum(4, tau=1)
    for step in range(1, 21):
        chosen = sampler.choose(step, 2)
        assert len(chosen) == 2
        sampler.observe(step, [group(state, 1.0, 1.0) for state in chosen])
    assert sampler.metrics()["potential_mean"] == 0
    for step in range(21, 31):
        sampler.observe(step, [group(state, 0.0, 1.0) for state in sampler.choose(step, 2)])
    assert sampler.metrics()["potential_mean"] > 0.4
    assert sampler.metrics()["buffer_eligible"] + sampler.metrics()["buffer_resting"] == 4


# --- children


def visited(n: int = 5, **values: Any) -> Curriculum:
    """Roots whose P after their visits are 0.5, 0.375, 0.18, 0.125 and 0: the 75 % quantile is 0.375."""
    sampler = curriculum(n, **values)
    rewards = [HALF, THREE_EIGHTHS, (0.0, 0.2), EIGHTH, ZERO]
    sampler.observe(1, [group(root, *values) for root, values in zip(roots(n), rewards, strict=True)])
    return sampler


def test_a_child_inherits_at_least_the_upper_quantile_and_fades() -> None:
    sampler = visited()
    high, low = roots(5)[0], roots(5)[2]
    of_high = State(high.task, Kind.DEBUG, "a", "e", parent=high.id)
    of_low = State(low.task, Kind.DEBUG, "b", "e", parent=low.id)
    assert sampler.insert(1, of_high)
    assert sampler.insert(1, of_low)
    assert sampler.metrics()["potential_q75"] == pytest.approx(0.375)
    nodes = sampler.buffer.nodes
    assert nodes[of_high.id].potential_at(1) == pytest.approx(0.5)
    assert nodes[of_low.id].potential_at(1) == pytest.approx(0.375)
    assert nodes[of_low.id].potential_at(1 + HALF_LIFE) == pytest.approx(0.1875)
    assert nodes[of_low.id].potential_at(1 + 2 * HALF_LIFE) == pytest.approx(0.09375)
    assert nodes[low.id].potential_at(1 + HALF_LIFE) == pytest.approx(0.18), "visited states do not fade"
    sampler.observe(30, [group(of_low, *HALF)])
    assert nodes[of_low.id].potential_at(90) == pytest.approx(0.5), "its first visit replaces what it inherited"


def test_every_turn_with_a_script_makes_a_state() -> None:
    sampler = curriculum(2)
    a, b = roots(2)
    sampler.choose(1, 2)
    groups = [
        group(a, 0.05, 0.05, 0.9, codes=["x", "x", "y"]),  # the second is the first once more
        group(b, None, 0.0, 0.05, codes=["x", "x", "z"]),  # the first was lost by us
    ]
    sampler.observe(1, groups)
    sampler.add(1, groups)
    metrics = sampler.metrics()
    assert (metrics["states_added"], metrics["states_duplicate"]) == (4, 1)
    assert (metrics["buffer_draft"], metrics["buffer_debug"], metrics["buffer_improve"]) == (2, 3, 1)
    ids = [node.id for node in sampler.buffer.nodes.values() if not node.root]
    kept = {(state.task, state.kind, state.code) for state in sampler.states(ids)}
    assert kept == {
        (a.task, Kind.DEBUG, "x"),
        (a.task, Kind.IMPROVE, "y"),
        (b.task, Kind.DEBUG, "x"),
        (b.task, Kind.DEBUG, "z"),
    }


def test_an_evicted_state_never_comes_back_under_other_numbers() -> None:
    sampler = visited(capacity=6)
    parent = roots(5)[0]
    first = State(parent.task, Kind.DEBUG, "a", "line 3 at 0x7f", parent=parent.id)
    assert sampler.insert(1, first)
    assert sampler.insert(2, State(parent.task, Kind.DEBUG, "b", "e", parent=parent.id))
    assert first.id not in sampler.buffer, "both inherit 0.5, and the older has faded further"
    assert not sampler.insert(3, State(parent.task, Kind.DEBUG, "a", "line 77 at 0x80", parent=parent.id))
    metrics = sampler.metrics()
    assert (metrics["states_evicted"], metrics["states_duplicate"], metrics["states_added"]) == (1, 1, 2)
    assert len(sampler.buffer) == 6


def test_roots_outlive_any_number_of_children() -> None:
    sampler = visited(capacity=8, children_cap=2)
    for number in range(50):
        root = roots(5)[number % 5]
        sampler.insert(2, State(root.task, Kind.DEBUG, f"{number}", "e", parent=root.id))
        assert {r.id for r in roots(5)} <= set(sampler.buffer.nodes)
        assert len(sampler.buffer) <= 8
        per_class = Counter((n.task, n.kind) for n in sampler.buffer.nodes.values() if not n.root)
        assert max(per_class.values()) <= 2


def test_a_state_that_cannot_be_acted_in_is_dropped_for_good() -> None:
    sampler = curriculum(1, tau=0)
    (root,) = roots(1)
    endless = State(root.task, Kind.DEBUG, "endless", "e", parent=root.id)
    sampler.insert(1, endless)
    assert endless in sampler.choose(2, 2)
    sampler.drop(2, [endless, endless, root])
    assert set(sampler.buffer.nodes) == {root.id}
    assert sampler.metrics()["states_evicted"] == 1
    assert not sampler.insert(3, endless)
    resumed = curriculum(1, shelf(sampler), tau=0)
    resumed.replay(sampler.drain_events())
    resumed.load_state_dict(sampler.state_dict())
    for step in range(3, 30):
        assert resumed.choose(step, 2) == sampler.choose(step, 2) == [root]
    assert resumed.metrics() == sampler.metrics()


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_a_share_of_the_draws_is_kept_for_roots_however_few_are_drawn(n: int) -> None:
    """A quarter of one draw is a draw in four; what is left goes to the children, who are nearly all."""
    sampler = curriculum(8, tau=0, rho_end=0, root_share=0.25, capacity=10**6, children_cap=10**6)
    for number in range(2000):
        sampler.insert(1, State("task-00", Kind.DEBUG, f"{number}", "e"))
    chosen = [state for step in range(2, 2 + 1200 // n) for state in sampler.choose(step, n)]
    assert len(chosen) == 1200
    share = sum(state.kind is Kind.DRAFT for state in chosen) / len(chosen)
    assert abs(share - 0.25) < 0.04  # 3 standard deviations of 1200 draws


@pytest.mark.parametrize("strategy", ["uniform", "dapo"])
def test_without_adaption_every_state_is_as_likely_roots_too(strategy: str) -> None:
    sampler = curriculum(8, tau=0, strategy=strategy, root_share=0.25, capacity=10**6, children_cap=10**6)
    for number in range(2000):
        sampler.insert(1, State("task-00", Kind.DEBUG, f"{number}", "e"))
    chosen = [state for step in range(2, 302) for state in sampler.choose(step, 4)]
    assert sum(state.kind is Kind.DRAFT for state in chosen) / len(chosen) < 0.02  # 8 of 2008


def test_a_whole_number_of_kept_draws_leaves_nothing_to_chance() -> None:
    sampler = curriculum(8, root_share=0.1)
    before = sampler.state_dict()
    assert [sampler._roots_of(n) for n in (0, 10, 20, 30)] == [0, 1, 2, 3]
    assert sampler.state_dict() == before
    assert sampler._roots_of(7) in (0, 1)
    assert sampler.state_dict() != before


def test_a_resting_state_can_be_evicted() -> None:
    sampler = visited(capacity=6, tau=50)
    parent = roots(5)[0]
    child = State(parent.task, Kind.DEBUG, "a", "e", parent=parent.id)
    sampler.insert(2, child)
    assert child.id in {state.id for state in sampler.choose(3, 6)}
    sampler.observe(3, [group(child, *ZERO)])
    sampler.insert(3, State(parent.task, Kind.DEBUG, "b", "e", parent=parent.id))
    assert child.id not in sampler.buffer
    assert sampler.metrics()["buffer_resting"] == 5
    assert child.id not in {state.id for state in sampler.choose(4, 9)}


# --- switches


def grown(**values: Any) -> Curriculum:
    sampler = curriculum(3, tau=0, **values)
    for step in range(1, 5):
        chosen = sampler.choose(step, 2)
        groups = [group(s, 0.05, 0.9, codes=[f"{step}a {s.id}", f"{step}b {s.id}"]) for s in chosen]
        sampler.observe(step, groups)
        sampler.add(step, groups)
    return sampler


def test_switches() -> None:
    both, no_buffer = grown(), grown(buffer=False)
    no_adaptive, neither = grown(strategy="uniform"), grown(strategy="uniform", buffer=False)
    assert len(both.buffer) == len(no_adaptive.buffer) == 3 + 16
    assert len(no_buffer.buffer) == len(neither.buffer) == 3
    for sampler in (no_adaptive, neither):
        chances = [row["q"] for row in sampler.snapshot()]
        assert chances == pytest.approx([1 / len(sampler.buffer)] * len(chances))
    assert len({row["q"] for row in both.snapshot()}) > 3
    for sampler in (no_buffer, neither):
        assert {state.kind for step in range(5, 20) for state in sampler.choose(step, 3)} == {Kind.DRAFT}
    assert no_adaptive.metrics()["potential_mean"] > 0, "P is measured all the same, for comparison"


def test_no_task_is_a_sentence() -> None:
    with pytest.raises(WorkbenchError, match="No task to train on"):
        Curriculum(settings(), [], STEPS)


# --- keeping


def test_equal_seeds_give_equal_choices_whatever_else_draws_numbers() -> None:
    def choices(seed: int, noise: bool) -> list[str]:
        sampler, found = curriculum(9, seed=seed, tau=1), []
        for step in range(1, 40):
            if noise:
                random.random()
            found += [state.id for state in sampler.choose(step, 2)]
        return found

    assert choices(0, False) == choices(0, True)
    assert choices(0, False) != choices(1, False)


def test_events_are_plain_json_and_rebuild_the_curriculum() -> None:
    sampler = grown()
    events, state = sampler.drain_events(), sampler.state_dict()
    assert sampler.drain_events() == []
    other = curriculum(3, shelf(sampler), tau=0)
    other.replay(json.loads(json.dumps(events)))
    other.load_state_dict(json.loads(json.dumps(state)))
    assert len(other.buffer) == 19
    assert other.snapshot() == sampler.snapshot()
    for step in range(5, 30):
        assert other.choose(step, 3) == sampler.choose(step, 3)
        assert other.metrics() == sampler.metrics()
    assert other.drain_events() == sampler.drain_events()


def test_a_changed_set_of_tasks_is_taken_over_by_name_and_counted() -> None:
    sampler = grown()
    events = sampler.drain_events()
    names = ("task-00", "task-02", "task-10", "task-11")
    other = Curriculum(settings(tau=0), [State(name, Kind.DRAFT) for name in names], STEPS)
    other.replay(events)
    gone = sum(node.task == "task-01" for node in sampler.buffer.nodes.values())
    assert len(other.buffer) == len(sampler.buffer) - gone + 2
    counts = {name: other.metrics()[name] for name in ("dropped_tasks", "dropped_states", "new_roots")}
    assert counts == {"dropped_tasks": 1, "dropped_states": gone, "new_roots": 2}
    assert {node.task for node in other.buffer.nodes.values()} == set(names)
    kept = {name: value for name, value in potentials(sampler).items() if name in other.buffer}
    assert {name: potentials(other)[name] for name in kept} == kept
    added = other.drain_events()
    assert [event["task"] for event in added] == ["task-10", "task-11"], "the next step records them"


# --- cost


def calls(action: Any) -> int:
    """How many functions, Python's and C's, an action calls."""
    count = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


def filled(n: int) -> Curriculum:
    sampler = curriculum(8, capacity=10**6, children_cap=10**6)
    for number in range(n):
        root = roots(8)[number % 8]
        sampler.insert(1 + number % 10, State(root.task, Kind.DEBUG, f"{number}", "e", parent=root.id))
    return sampler


@pytest.mark.parametrize("strategy", ["acegrpo", "learnability"])
def test_choosing_and_observing_cost_hardly_more_in_a_large_buffer(strategy: str) -> None:
    costs = []
    for n in (500, 16_000):
        sampler = filled(n)
        sampler.update(settings(strategy=strategy, capacity=10**6, children_cap=10**6))
        sampler.choose(11, 64)  # indices are built when first asked for
        chosen: list[State] = []
        choosing = calls(lambda sampler=sampler, chosen=chosen: chosen.extend(sampler.choose(12, 64)))
        assert len(chosen) == 64
        groups = [group(state, *HALF) for state in chosen]
        observing = calls(lambda sampler=sampler, groups=groups: sampler.observe(12, groups))
        costs.append((choosing, observing))
    (small_choosing, small_observing), (large_choosing, large_observing) = costs
    assert large_choosing < 2 * small_choosing
    assert large_observing < 2 * small_observing
