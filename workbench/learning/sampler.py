"""The curriculum of AceGRPO: which states to act in next, and what their rewards say about the states.

Learnability P(x) = (2·std)^a · (R_max - mean)^b of a group's rewards (R_max = 1), a moving average over visits, from
the first visit on. A product: a hopeless state (std 0) and a solved one (headroom 0) both get 0. A child starts with
its parent's P, at least with the `OPTIMISM` quantile, and fades while it stays unvisited (ranking.py). Focus
Q_t(x) ∝ rank_t(x)^(-ρ(t)) over the states that do not rest, mixed with a uniform share ε, so that no state is ever
lost. Cooling: a state chosen at step t rests for τ steps. A share of each step's draws is kept for roots that do not
rest, however many children crowd the buffer: whole solutions are what is measured in the end. The published
descriptions give the other ideas in words; the formulas here, and that share, are our choice.

`Curriculum` is event-sourced: `choose`, `observe`, `add` and `drop` decide, `apply` is the only function that changes
anything, and `replay` of the events, with the generator's state from `state_dict`, rebuilds it exactly.
"""

from __future__ import annotations

import math
import random
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sortedcontainers import SortedList

from workbench.config import Config
from workbench.learning.buffer import Buffer, child
from workbench.learning.events import Added, Chosen, Event, Evicted, Observed, from_dict, to_dict
from workbench.learning.ranking import UNIFORM, Node, Ranking
from workbench.learning.strategies import STRATEGIES, focus, reward_statistics
from workbench.types import Group, State, WorkbenchError

OPTIMISM = 0.75
"""A child starts with at least this quantile of P over the visited states."""

ROOT_POTENTIAL = 1.0
"""P of a root until its first visit: the highest there is."""


class Curriculum:
    """Buffer and sampler of one run. In a step: `choose`, act, `observe`, `add`; then `drain_events` into the run."""

    def __init__(self, config: Config, roots: Sequence[State], total_steps: int) -> None:
        if not roots:
            raise WorkbenchError("No task to train on: expected at least one root state, name a task in `tasks`.")
        self._roots = {root.id: root for root in roots}
        self._config = config
        self._total_steps = total_steps
        self._random = random.Random(f"curriculum/{config.seed}")
        self._replayed: dict[str, int] = {}
        self._clear()
        for root in self._roots.values():
            self._insert(root, 0)

    def _clear(self) -> None:
        self.buffer = Buffer(self._config.capacity, self._config.children_cap)
        self._eligible = Ranking()
        self._eligible_roots = Ranking()
        self._resting: OrderedDict[str, Node] = OrderedDict()
        """Least recently chosen first."""
        self._visited = _Potentials()
        self._step = 0
        self._choices = 0
        self._choice_sum = 0.0
        """Σ c·ln c over the states' numbers of choices."""
        self._pending: list[Event] = []
        self._counts: Counter[str] = Counter()
        self._counted: int | None = None
        """The step that `_counts` is about."""

    # --- deciding

    def choose(self, step: int, n: int) -> list[State]:
        """Up to `n` different states to act in at `step` (steps never go back).

        When fewer than `n` are rested, the least recently chosen are released; when there are not `n` states at all,
        fewer come back, and `choices_missing` counts them. Called again for the same step it gives further states,
        never those of the calls before.
        """
        if step != self._counted:
            self._counts.clear()
            self._counted = step
        self._advance(step)
        chosen: list[State] = []
        roots = self._roots_of(n)
        while len(chosen) < n:
            pool = self._eligible_roots if len(chosen) < roots and len(self._eligible_roots) else self._eligible
            state_id = self._draw(step, pool) if len(pool) else self._released(step)
            if state_id is None:
                break
            node = self.buffer.nodes[state_id]
            self._do(Chosen(step, state_id, node.potential_at(step)))
            chosen.append(node.state)
        self._counts["choices_missing"] += n - len(chosen)
        return chosen

    def _roots_of(self, n: int) -> int:
        """How many of `n` draws are kept for roots: `root_share` of them in the mean, the fraction left to chance.

        None where the strategy is `uniform`, which takes every state alike."""
        if self._config.strategy == "uniform":
            return 0
        whole, fraction = divmod(round(self._config.root_share * n, 9), 1)
        return int(whole) + (fraction > 0 and self._random.random() < fraction)

    def _draw(self, step: int, pool: Ranking) -> str:
        uniform = self._random.random() < self._config.epsilon
        draw = UNIFORM if uniform else STRATEGIES[self._config.strategy].draw
        return draw.sample(self._random, pool, step, focus(step, self._total_steps, self._config))

    def _released(self, step: int) -> str | None:
        first = next(iter(self._resting.values()), None)
        if first is None or first.last_chosen == step:
            return None
        self._counts["choices_released"] += 1
        return first.id

    def observe(self, step: int, groups: Sequence[Group]) -> None:
        """Take in the rewards of groups. Groups of states no longer kept, and those without a spread to measure
        (fewer than two scorable rewards), change nothing and are counted."""
        self._advance(step)
        config = self._config
        for group in groups:
            node = self.buffer.nodes.get(group.state.id)
            rewards = reward_statistics(group)
            if node is None or rewards is None:
                self._counts["groups_late" if node is None else "groups_unmeasured"] += 1
                continue
            potential = STRATEGIES[config.strategy].potential(rewards, config)
            if node.visits:
                potential = config.potential_ema * potential + (1 - config.potential_ema) * node.potential
            self._do(Observed(step, node.id, *rewards, potential))

    def add(self, step: int, groups: Sequence[Group]) -> None:
        """Grow the buffer by x' = Φ(x, y, f) of every turn; call it after `observe`, so that children inherit what
        this visit taught. Equal states are added once, evicted ones never again. Without a buffer nothing happens."""
        self._advance(step)
        if not self._config.buffer:
            return
        for group in groups:
            for turn in group.turns:
                state = child(turn)
                if state is not None:
                    self.insert(step, state)

    def insert(self, step: int, state: State) -> bool:
        """Add one child, and evict what no longer fits. False when an equal state is or was there."""
        if self.buffer.known(state):
            self._counts["states_duplicate"] += 1
            return False
        self._insert(state, step)
        return True

    def drop(self, step: int, states: Iterable[State]) -> None:
        """Take out states that cannot be acted in, such as one whose prompt does not fit, for good. Roots stay."""
        self._advance(step)
        for state in states:
            node = self.buffer.nodes.get(state.id)
            if node is not None and not node.root:
                self._do(Evicted(step, node.id))

    def _insert(self, state: State, step: int) -> None:
        root = state.id in self._roots
        potential = ROOT_POTENTIAL if root else self._inherited(state, step)
        self._do(Added(step, state, root, potential, self._random.random()))
        victim = self.buffer.overflow(state, step)
        if victim is not None:
            self._do(Evicted(step, victim))

    def _inherited(self, state: State, step: int) -> float:
        parent = self.buffer.nodes.get(state.parent or "")
        return max(parent.potential_at(step) if parent else 0.0, self._visited.quantile(OPTIMISM))

    def update(self, config: Config) -> None:
        """Apply settings changed during the run; ρ's ramp follows `config.steps`."""
        longer = config.tau > self._config.tau
        self._config, self._total_steps = config, config.steps
        if longer:
            recent = [node for node in self.buffer.nodes.values() if self._rests(node, self._step)]
            for node in sorted(recent, key=lambda node: node.order):
                self._rest(node)

    # --- changing

    def _do(self, event: Event) -> None:
        self.apply(event)
        self._pending.append(event)

    def apply(self, event: Event) -> None:
        """Make one event happen; the only function that changes states, P, visits and who rests."""
        self._step = max(self._step, event.step)
        if isinstance(event, Added):
            self._enter(self.buffer.insert(event))
            self._counts["states_added"] += not event.root
        elif isinstance(event, Evicted):
            self._apply_evicted(self.buffer.remove(event.state_id))
        elif isinstance(event, Chosen):
            self._apply_chosen(event, self.buffer.nodes[event.state_id])
        else:
            self._apply_observed(event, self.buffer.nodes[event.state_id])

    def _apply_evicted(self, node: Node) -> None:
        if node.resting:
            del self._resting[node.id]
        else:
            self._leave(node)
        if node.visits:
            self._visited.remove(node.potential)
        self._counts["states_evicted"] += 1

    def _apply_chosen(self, event: Chosen, node: Node) -> None:
        self._choices += 1
        self._choice_sum += _c_log_c(node.choices + 1) - _c_log_c(node.choices)
        node.choices += 1
        node.last_chosen, node.order = event.step, self._choices
        self._rest(node)

    def _apply_observed(self, event: Observed, node: Node) -> None:
        self.buffer.unrank(node)
        if not node.resting:
            self._leave(node)
        if node.visits:
            self._visited.remove(node.potential)
        node.visits += 1
        node.mean, node.std = event.mean, event.std
        node.set_potential(event.potential)
        self._visited.add(node.potential)
        self.buffer.rank(node)
        if not node.resting:
            self._enter(node)

    def _enter(self, node: Node) -> None:
        self._eligible.add(node)
        if node.root:
            self._eligible_roots.add(node)

    def _leave(self, node: Node) -> None:
        self._eligible.remove(node)
        if node.root:
            self._eligible_roots.remove(node)

    def _rest(self, node: Node) -> None:
        if not node.resting:
            self._leave(node)
            node.resting = True
        self._resting[node.id] = node
        self._resting.move_to_end(node.id)

    def _rests(self, node: Node, step: int) -> bool:
        return node.last_chosen is not None and step - node.last_chosen <= self._config.tau

    def _advance(self, step: int) -> None:
        """Time passes: who rests depends on the step, on τ and on the choices alone, so no event is needed."""
        self._step = max(self._step, step)
        while self._resting:
            node = next(iter(self._resting.values()))
            if self._rests(node, self._step):
                return
            del self._resting[node.id]
            node.resting = False
            self._enter(node)

    # --- keeping

    def drain_events(self) -> list[dict[str, Any]]:
        """Events since the last call, in order, ready for JSON."""
        events = [to_dict(event) for event in self._pending]
        self._pending.clear()
        return events

    def replay(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Rebuild from recorded events instead of what is here. States of tasks that are no longer trained on are
        dropped with all their events, roots that are new are added (as fresh events); `metrics` counts both as
        dropped_tasks, dropped_states and new_roots."""
        self._clear()
        tasks, dropped = {root.task for root in self._roots.values()}, Counter[str]()
        for values in events:
            event = from_dict(values)
            if isinstance(event, Added):
                if event.state.task not in tasks:
                    dropped[event.state.task] += 1
                elif event.state.id not in self.buffer:
                    self.apply(event)
            elif event.state_id in self.buffer:
                self.apply(event)
        new = [root for state_id, root in self._roots.items() if state_id not in self.buffer]
        for root in new:
            self._insert(root, self._step)
        self._counts.clear()
        changed = {"dropped_tasks": len(dropped), "dropped_states": dropped.total(), "new_roots": len(new)}
        self._replayed = {name: count for name, count in changed.items() if count}

    def state_dict(self) -> dict[str, Any]:
        """What events do not hold: the generator's state, ready for JSON."""
        version, internal, gauss = self._random.getstate()
        return {"random": [version, list(internal), gauss]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`; call it after `replay`."""
        version, internal, gauss = state["random"]
        self._random.setstate((version, tuple(internal), gauss))

    # --- looking

    def metrics(self) -> dict[str, float]:
        """Sizes now, and counts of the step. `choice_entropy` (nats) is that of the states' shares of all choices so
        far; `potential_mean` and `potential_q75` are over visited states (absent without one)."""
        metrics = {
            "buffer_states": float(len(self.buffer)),
            "buffer_visited": float(len(self._visited)),
            "buffer_eligible": float(len(self._eligible)),
            "buffer_resting": float(len(self._resting)),
            **{f"buffer_{kind.value}": float(size) for kind, size in self.buffer.sizes().items()},
            "rho": focus(self._step, self._total_steps, self._config),
        }
        if self._choices:
            metrics["choice_entropy"] = max(0.0, math.log(self._choices) - self._choice_sum / self._choices)
        if self._visited:
            metrics["potential_mean"] = self._visited.mean
            metrics["potential_q75"] = self._visited.quantile(OPTIMISM)
        for name in _COUNTS:
            metrics[name] = float(self._counts[name])
        return metrics | {name: float(count) for name, count in self._replayed.items()}

    def snapshot(self) -> list[dict[str, Any]]:
        """One row per state, highest P first, as the next step will find them: state_id, task, kind, parent, potential
        (P), rank (1-based, over all), q (chance of the next draw that is open to all; 0 at rest), resting, choices,
        visits, last_chosen, reward_mean, reward_std (of the latest visit). O(n log n): for views, not for the loop."""
        step = self._step + 1
        nodes = sorted(self.buffer.nodes.values(), key=lambda node: (-node.potential_at(step), node.tie))
        rested = [node for node in nodes if not self._rests(node, step)]
        chances: dict[str, float] = {}
        if rested:
            rho, epsilon = focus(step, self._total_steps, self._config), self._config.epsilon
            law = STRATEGIES[self._config.strategy].draw.chances([node.potential_at(step) for node in rested], rho)
            chances = {n.id: epsilon / len(rested) + (1 - epsilon) * p for n, p in zip(rested, law, strict=True)}
        return [
            {
                "state_id": node.id,
                "task": node.state.task,
                "kind": node.state.kind.value,
                "parent": node.state.parent,
                "potential": node.potential_at(step),
                "rank": rank,
                "q": chances.get(node.id, 0.0),
                "resting": node.id not in chances,
                "choices": node.choices,
                "visits": node.visits,
                "last_chosen": node.last_chosen,
                "reward_mean": node.mean if node.visits else None,
                "reward_std": node.std if node.visits else None,
            }
            for rank, node in enumerate(nodes, 1)
        ]


_COUNTS = (
    "states_added",
    "states_duplicate",
    "states_evicted",
    "choices_released",
    "choices_missing",
    "groups_late",
    "groups_unmeasured",
)


class _Potentials:
    """P of the visited states, in order, with their exact sum: adding and removing leaves no rounding behind."""

    _UNIT = 2**60

    def __init__(self) -> None:
        self._sorted: SortedList = SortedList()
        self._sum = 0

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, potential: float) -> None:
        self._sorted.add(potential)
        self._sum += int(potential * self._UNIT)

    def remove(self, potential: float) -> None:
        self._sorted.remove(potential)
        self._sum -= int(potential * self._UNIT)

    @property
    def mean(self) -> float:
        return self._sum / len(self) / self._UNIT

    def quantile(self, share: float) -> float:
        """The smallest value with at least `share` of the values at or below it; 0 when there is none."""
        return float(self._sorted[math.ceil(share * len(self)) - 1]) if len(self) else 0.0


def _c_log_c(count: int) -> float:
    return count * math.log(count) if count else 0.0
