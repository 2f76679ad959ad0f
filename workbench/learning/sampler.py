"""The curriculum of AceGRPO: which states to act in next, and what their rewards say about the states.

Learnability P(x) = (2·std)^a · (R_max - mean)^b of a group's rewards (R_max = 1), a moving average over visits, from
the first visit on. A product: a hopeless state (std 0) and a solved one (headroom 0) both get 0. A child starts with
its parent's P, at least with the `OPTIMISM` quantile, and fades while it stays unvisited (ranking.py). Focus
Q_t(x) ∝ rank_t(x)^(-ρ(t)) over the states that do not rest, mixed with a uniform share ε, so that no state is ever
lost. Cooling: a state chosen at step t rests for τ steps. A share of each step's draws is kept for roots that do not
rest, however many children crowd the buffer: whole solutions are what is measured in the end. The published
descriptions give the other ideas in words; the formulas here, and that share, are our choice.

`Curriculum` is event-sourced: `choose`, `observe`, `add` and `drop` decide, `apply` is the only function that changes
anything, and `replay` of the events, with the generator's state from `state_dict`, rebuilds it exactly; from a
snapshot, only of those after it. What states say is in a store, and only read for those chosen.
"""

from __future__ import annotations

import logging
import math
import random
from collections import ChainMap, Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from workbench.config import Config
from workbench.learning.buffer import Buffer, child, identity
from workbench.learning.events import Added, Chosen, Event, Evicted, Observed, from_dict, to_dict
from workbench.learning.pool import Pool, rests
from workbench.learning.ranking import UNIFORM, Ranking
from workbench.learning.snapshots import Unusable, due, restore, take
from workbench.learning.strategies import STRATEGIES, focus, reward_statistics
from workbench.run import Run
from workbench.types import Group, State, WorkbenchError

log = logging.getLogger(__name__)

OPTIMISM = 0.75
"""A child starts with at least this quantile of P over the visited states."""

ROOT_POTENTIAL = 1.0
"""P of a root until its first visit: the highest there is."""


class Store(Protocol):
    """Where what states say is kept; a run is one."""

    def find_states(self, ids: Sequence[str]) -> Mapping[str, State]:
        """The states with these ids, by id."""
        ...


class Curriculum:
    """Buffer and sampler of one run. In a step: `choose`, act, `observe`, `add`; then what `drain_events`,
    `drain_states` and `drain_snapshot` give goes into the run."""

    def __init__(self, config: Config, roots: Sequence[State], total_steps: int, store: Store | None = None) -> None:
        """`store` holds the states drained by `drain_states`; without one they stay in memory."""
        if not roots:
            raise WorkbenchError("No task to train on: expected at least one root state, name a task in `tasks`.")
        self._roots = {root.id: root for root in roots}
        self._config = config
        self._total_steps = total_steps
        self._random = random.Random(f"curriculum/{config.seed}")
        self._store = store
        self._replayed: dict[str, int] = {}
        self._clear()
        for root in self._roots.values():
            self._insert(root, identity(root), 0)

    def _clear(self) -> None:
        self._pool = Pool(self._config.capacity, self._config.children_cap)
        self._added: dict[str, State] = {}
        """States that the store does not hold yet."""
        self._pending: list[Event] = []
        self._since_snapshot = 0
        self._dropped: Counter[str] = Counter()
        """States of tasks that are no longer trained on, by task."""
        self._counts: Counter[str] = Counter()
        self._counted: int | None = None
        """The step that `_counts` is about."""

    @property
    def buffer(self) -> Buffer:
        """The states kept."""
        return self._pool.buffer

    def states(self, ids: Sequence[str]) -> list[State]:
        """What the states with these ids say, read from the store where it has them."""
        held = ChainMap(self._roots, self._added)
        away = [state_id for state_id in ids if state_id not in held]
        found = self._store.find_states(away) if away and self._store is not None else {}
        return [held[state_id] if state_id in held else found[state_id] for state_id in ids]

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
        chosen: list[str] = []
        roots, pool = self._roots_of(n), self._pool
        while len(chosen) < n:
            ranking = pool.eligible_roots if len(chosen) < roots and len(pool.eligible_roots) else pool.eligible
            state_id = self._draw(step, ranking) if len(ranking) else self._released(step)
            if state_id is None:
                break
            self._do(Chosen(step, state_id, self.buffer.nodes[state_id].potential_at(step)))
            chosen.append(state_id)
        self._counts["choices_missing"] += n - len(chosen)
        return self.states(chosen)

    def _roots_of(self, n: int) -> int:
        """How many of `n` draws are kept for roots: `root_share` of them in the mean, the fraction left to chance.

        None where the strategy draws every state alike."""
        if STRATEGIES[self._config.strategy].draw is UNIFORM:
            return 0
        whole, fraction = divmod(round(self._config.root_share * n, 9), 1)
        return int(whole) + (fraction > 0 and self._random.random() < fraction)

    def _draw(self, step: int, ranking: Ranking) -> str:
        uniform = self._random.random() < self._config.epsilon
        draw = UNIFORM if uniform else STRATEGIES[self._config.strategy].draw
        return draw.sample(self._random, ranking, step, focus(step, self._total_steps, self._config))

    def _released(self, step: int) -> str | None:
        first = next(iter(self._pool.resting.values()), None)
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
        name = identity(state)
        if name in self.buffer.seen:
            self._counts["states_duplicate"] += 1
            return False
        self._insert(state, name, step)
        return True

    def drop(self, step: int, states: Iterable[State]) -> None:
        """Take out states that cannot be acted in, such as one whose prompt does not fit, for good. Roots stay."""
        self._advance(step)
        for state in states:
            node = self.buffer.nodes.get(state.id)
            if node is not None and not node.root:
                self._do(Evicted(step, node.id))

    def _insert(self, state: State, name: str, step: int) -> None:
        state_id = state.id
        root = state_id in self._roots
        potential = ROOT_POTENTIAL if root else self._inherited(state, step)
        tie = self._random.random()
        self._added[state_id] = state
        self._do(Added(step, state_id, name, state.task, state.kind, state.parent, root, potential, tie))
        victim = self.buffer.overflow(self.buffer.nodes[state_id], step)
        if victim is not None:
            self._do(Evicted(step, victim))

    def _inherited(self, state: State, step: int) -> float:
        parent = self.buffer.nodes.get(state.parent or "")
        return max(parent.potential_at(step) if parent else 0.0, self._pool.visited.quantile(OPTIMISM))

    def update(self, config: Config) -> None:
        """Apply settings changed during the run; ρ's ramp follows `config.steps`."""
        longer = config.tau > self._config.tau
        self._config, self._total_steps = config, config.steps
        if longer:
            self._pool.rest_longer(config.tau)

    # --- changing

    def _do(self, event: Event) -> None:
        self.apply(event)
        self._pending.append(event)

    def apply(self, event: Event) -> None:
        """Make one event happen; the only function that changes states, P, visits and who rests."""
        self._pool.apply(event)
        self._since_snapshot += 1
        if isinstance(event, Added):
            self._counts["states_added"] += not event.root
        elif isinstance(event, Evicted):
            self._counts["states_evicted"] += 1
            if self._store is None:
                self._added.pop(event.state_id, None)

    def _advance(self, step: int) -> None:
        self._pool.advance(step, self._config.tau)

    # --- keeping

    def drain_events(self) -> list[dict[str, Any]]:
        """Events since the last call, in order, ready for JSON."""
        events = [to_dict(event) for event in self._pending]
        self._pending.clear()
        return events

    def drain_states(self) -> list[State]:
        """The states added since the last call, for the store to keep. Without a store they stay in memory, and come
        again with every call."""
        states = list(self._added.values())
        if self._store is not None:
            self._added.clear()
        return states

    def drain_snapshot(self) -> dict[str, bytes] | None:
        """A snapshot to be kept together with the events drained; None while there are too few since the last one."""
        if not due(self._since_snapshot, self._pool):
            return None
        self._since_snapshot = 0
        return take(self._pool, list(self._roots), self._dropped)

    def replay(self, events: Iterable[Mapping[str, Any]], snapshot: Mapping[str, bytes] | None = None) -> None:
        """Rebuild from recorded events instead of what is here: from all, or from those after a snapshot.

        States of tasks that are no longer trained on are dropped with all their events, roots that are new are added
        (as fresh events); `metrics` counts both as dropped_tasks, dropped_states and new_roots. Raises `Unusable`,
        before any event is read, for a snapshot that is damaged or of other roots.
        """
        self._clear()
        if snapshot is not None:
            self._dropped.update(restore(self._pool, snapshot, list(self._roots), self._config.tau).dropped)
        tasks = {root.task for root in self._roots.values()}
        for values in events:
            event = from_dict(values)
            if isinstance(event, Added):
                if event.task not in tasks:
                    self._dropped[event.task] += 1
                elif event.state_id not in self.buffer:
                    self.apply(event)
            elif event.state_id in self.buffer:
                self.apply(event)
        new = [root for state_id, root in self._roots.items() if state_id not in self.buffer]
        for root in new:
            self._insert(root, identity(root), self._pool.step)
        self._counts.clear()
        changed = {
            "dropped_tasks": len(self._dropped),
            "dropped_states": self._dropped.total(),
            "new_roots": len(new),
        }
        self._replayed = {name: count for name, count in changed.items() if count}

    def reopen(self, run: Run) -> None:
        """Rebuild from what a run has recorded: its latest usable snapshot and the events after it, else all events."""
        for step, snapshot in run.curriculum_snapshots():
            try:
                self.replay(run.curriculum_events(step + 1), snapshot)
            except Unusable as reason:
                log.warning("The curriculum's snapshot of step %d %s: it is passed over.", step, reason)
            else:
                log.info("The curriculum goes on from its snapshot of step %d.", step)
                return
        self.replay(run.curriculum_events())
        if due(self._since_snapshot, self._pool):
            log.warning("No snapshot of the curriculum could be used: all its events were replayed.")

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
        pool = self._pool
        metrics = {
            "buffer_states": float(len(self.buffer)),
            "buffer_visited": float(len(pool.visited)),
            "buffer_eligible": float(len(pool.eligible)),
            "buffer_resting": float(len(pool.resting)),
            **{f"buffer_{kind.value}": float(size) for kind, size in self.buffer.sizes().items()},
            "rho": focus(pool.step, self._total_steps, self._config),
        }
        if pool.choices:
            metrics["choice_entropy"] = max(0.0, math.log(pool.choices) - pool.choice_sum / pool.choices)
        if pool.visited:
            metrics["potential_mean"] = pool.visited.mean
            metrics["potential_q75"] = pool.visited.quantile(OPTIMISM)
        for name in _COUNTS:
            metrics[name] = float(self._counts[name])
        return metrics | {name: float(count) for name, count in self._replayed.items()}

    def snapshot(self) -> list[dict[str, Any]]:
        """One row per state, highest P first, as the next step will find them: state_id, task, kind, parent, potential
        (P), rank (1-based, over all), q (chance of the next draw that is open to all; 0 at rest), resting, choices,
        visits, last_chosen, reward_mean, reward_std (of the latest visit). O(n log n): for views, not for the loop."""
        step = self._pool.step + 1
        nodes = sorted(self.buffer.nodes.values(), key=lambda node: (-node.potential_at(step), node.tie))
        rested = [node for node in nodes if not rests(node, step, self._config.tau)]
        chances: dict[str, float] = {}
        if rested:
            rho, epsilon = focus(step, self._total_steps, self._config), self._config.epsilon
            law = STRATEGIES[self._config.strategy].draw.chances([node.potential_at(step) for node in rested], rho)
            chances = {n.id: epsilon / len(rested) + (1 - epsilon) * p for n, p in zip(rested, law, strict=True)}
        return [
            {
                "state_id": node.id,
                "task": node.task,
                "kind": node.kind.value,
                "parent": node.parent,
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
