"""The curriculum under any order of events: all of them, or a snapshot at any moment and what follows, rebuild it.

Its promises hold after every event.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import settings as profile
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from workbench.config import change, make_config
from workbench.learning.sampler import Curriculum
from workbench.learning.snapshots import LEAST
from workbench.learning.strategies import STRATEGIES
from workbench.types import Action, Feedback, Group, Kind, Reward, State, StopReason, Turn, Verdict

ROOTS = [State(f"task-{i}", Kind.DRAFT) for i in range(3)]


class Shelf(dict[str, State]):
    """What a run keeps of states."""

    def find_states(self, ids: Sequence[str]) -> dict[str, State]:
        return {state_id: self[state_id] for state_id in ids}


class Learning(RuleBasedStateMachine):
    """Steps of a run with arbitrary rewards, scripts, lateness and changes of settings."""

    @initialize(
        capacity=st.integers(3, 12),
        cap=st.integers(1, 4),
        tau=st.integers(0, 3),
        strategy=st.sampled_from(sorted(STRATEGIES)),
    )
    def begin(self, capacity: int, cap: int, tau: int, strategy: Any) -> None:
        self.config = make_config(
            steps=20, capacity=capacity, children_cap=cap, tau=tau, strategy=strategy, rho_ramp=0.3
        )
        self.shelf = Shelf()
        self.sampler = Curriculum(self.config, ROOTS, 20, self.shelf)
        self.events: list[dict[str, Any]] = []
        self.snapshots: list[tuple[int, dict[str, bytes]]] = []
        self.step = 0
        self.waiting: list[State] = []
        self.chosen_at: dict[str, int] = {}
        self.ever: set[str] = set()

    @rule(n=st.integers(0, 5), ahead=st.integers(1, 7))
    def choose(self, n: int, ahead: int) -> None:
        self.step += ahead
        kept = dict(self.sampler.buffer.nodes)
        chosen = self.sampler.choose(self.step, n)
        assert len({state.id for state in chosen}) == len(chosen) == min(n, len(kept))
        rested = {i for i in kept if i not in self.chosen_at or self.step - self.chosen_at[i] > self.config.tau}
        first, then = chosen[: len(rested)], chosen[len(rested) :]
        assert {state.id for state in first} <= rested, "those who rest come only when all others are gone"
        order = [self.chosen_at[state.id] for state in then]
        assert order == sorted(order), "and the least recently chosen first"
        self.chosen_at.update({state.id: self.step for state in chosen})
        self.waiting += chosen

    @rule(data=st.data(), count=st.integers(1, 3))
    def learn(self, data: st.DataObject, count: int) -> None:
        ready, self.waiting = self.waiting[:count], self.waiting[count:]
        groups = []
        for state in ready:
            rewards = data.draw(st.lists(st.one_of(st.none(), st.floats(0, 1)), min_size=1, max_size=3))
            codes = [data.draw(st.sampled_from(["a", "b", "c", "d", "e"])) for _ in rewards]
            turns = [_turn(state, reward, code) for reward, code in zip(rewards, codes, strict=True)]
            groups.append(Group("g", state, (1,), tuple(turns)))
        self.sampler.observe(self.step, groups)
        self.sampler.add(self.step, groups)

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        """States whose prompts do not fit; roots among them stay."""
        kept = st.sampled_from(list(self.sampler.buffer.nodes))
        self.sampler.drop(self.step, self.sampler.states(data.draw(st.lists(kept, max_size=2))))

    @rule(tau=st.integers(0, 6), epsilon=st.sampled_from([0.0, 0.3]))
    def turn_knobs(self, tau: int, epsilon: float) -> None:
        self.config = change(self.config, tau=tau, epsilon=epsilon)
        self.sampler.update(self.config)

    @rule()
    def take_snapshot(self) -> None:
        self.commit()
        before = self.sampler.state_dict()
        self.sampler._since_snapshot = LEAST  # due
        snapshot = self.sampler.drain_snapshot()
        assert snapshot is not None
        assert self.sampler.state_dict() == before
        self.snapshots.append((len(self.events), snapshot))

    def commit(self) -> None:
        self.events += self.sampler.drain_events()
        self.shelf |= {state.id: state for state in self.sampler.drain_states()}

    @rule(data=st.data(), n=st.integers(1, 4))
    def resume(self, data: st.DataObject, n: int) -> None:
        """What a run does after kill −9: what it recorded and the generator's state are all there is."""
        self.commit()
        state = json.dumps(self.sampler.state_dict())
        chosen = st.sampled_from([(0, None), *self.snapshots])
        built = [self.rebuilt(state, start, snapshot) for start, snapshot in ((0, None), data.draw(chosen))]
        self.step += 1
        for sampler in (self.sampler, *built):
            sampler.choose(self.step, 0)
        for sampler in built:
            assert sampler.snapshot() == self.sampler.snapshot()
            assert sampler.metrics() == self.sampler.metrics()
            assert {*map(str, sampler.buffer.seen.numbers())} == {*map(str, self.sampler.buffer.seen.numbers())}
        draws = [sampler.choose(self.step, n) for sampler in (self.sampler, *built)]
        assert draws[1] == draws[2] == draws[0]
        self.chosen_at.update({state.id: self.step for state in draws[0]})
        self.waiting += draws[0]
        self.sampler = built[1]  # go on with the rebuilt one

    def rebuilt(self, state: str, start: int, snapshot: dict[str, bytes] | None) -> Curriculum:
        fresh = Curriculum(self.config, ROOTS, 20, self.shelf)
        fresh.replay(json.loads(json.dumps(self.events[start:])), snapshot)
        fresh.load_state_dict(json.loads(state))
        assert fresh.drain_events() == []
        assert fresh.drain_states() == []
        return fresh

    @invariant()
    def promises(self) -> None:
        if not hasattr(self, "sampler"):
            return
        nodes = self.sampler.buffer.nodes
        assert {root.id for root in ROOTS} <= set(nodes)
        assert len(nodes) <= self.config.capacity
        rows = self.sampler.snapshot()
        assert len(rows) == len(nodes)
        assert all(0 <= row["potential"] <= 1 for row in rows)
        assert self.sampler.metrics()["buffer_visited"] == sum(row["visits"] > 0 for row in rows)
        total = sum(row["q"] for row in rows)
        assert abs(total - 1) < 1e-9 or all(row["resting"] for row in rows)
        children = [node for node in nodes.values() if not node.root]
        assert all(
            sum(other.task == node.task and other.kind == node.kind for other in children) <= self.config.children_cap
            for node in children
        )
        assert self.sampler.metrics()["buffer_debug"] == sum(node.kind is Kind.DEBUG for node in nodes.values())


def _turn(state: State, reward: float | None, code: str) -> Turn:
    verdict = Verdict.INFRASTRUCTURE if reward is None else Verdict.OK if reward > 0.5 else Verdict.RUNTIME_ERROR
    feedback = Feedback(verdict, code, reason="NameError: 'x'", score=reward if verdict is Verdict.OK else None)
    total = None if reward is None else Reward(reward)
    return Turn(state, Action(code, (1,), (-1.0,), 0, StopReason.EOS), feedback, total, "g", "t")


TestLearning = Learning.TestCase
TestLearning.settings = profile(max_examples=80, stateful_step_count=25, deadline=None, derandomize=True)
