"""What the events of the curriculum change: the buffer, who rests, which P were seen. Nothing is decided here.

Everything costs O(log n) of the number of states, or O(1).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from itertools import takewhile

from workbench.learning.buffer import Buffer, Seen
from workbench.learning.events import Added, Chosen, Event, Evicted, Observed
from workbench.learning.ranking import Node, Potentials, Ranking

LONGEST_REST = 10_000
"""Steps after which no setting of τ can make a chosen state rest."""


class Pool:
    """The states with their ranks and rests, at a step. `apply` and the passing of time are all that changes them."""

    def __init__(self, capacity: int, children_cap: int) -> None:
        self.buffer = Buffer(capacity, children_cap)
        self.eligible = Ranking()
        self.eligible_roots = Ranking()
        self.resting: OrderedDict[str, Node] = OrderedDict()
        """Least recently chosen first."""
        self.visited = Potentials()
        self.step = 0
        self.choices = 0
        self.choice_sum = 0.0
        """Σ c·ln c over the states' numbers of choices."""
        self._recent: OrderedDict[str, Node] = OrderedDict()
        """Those chosen within the last `LONGEST_REST` steps, least recently chosen first."""

    def apply(self, event: Event) -> None:
        """Make one event happen."""
        self.step = max(self.step, event.step)
        if isinstance(event, Added):
            self._enter(self.buffer.insert(event))
        elif isinstance(event, Evicted):
            self._evicted(self.buffer.remove(event.state_id))
        elif isinstance(event, Chosen):
            self._chosen(event, self.buffer.nodes[event.state_id])
        else:
            self._observed(event, self.buffer.nodes[event.state_id])

    def _evicted(self, node: Node) -> None:
        self._recent.pop(node.id, None)
        if node.resting:
            del self.resting[node.id]
        else:
            self._leave(node)
        if node.visits:
            self.visited.remove(node.potential)

    def _chosen(self, event: Chosen, node: Node) -> None:
        self.choices += 1
        self.choice_sum += _c_log_c(node.choices + 1) - _c_log_c(node.choices)
        node.choices += 1
        node.last_chosen, node.order = event.step, self.choices
        self._rest(node)
        self._remember(node)

    def _observed(self, event: Observed, node: Node) -> None:
        self.buffer.unrank(node)
        if not node.resting:
            self._leave(node)
        if node.visits:
            self.visited.remove(node.potential)
        node.visits += 1
        node.mean, node.std = event.mean, event.std
        node.set_potential(event.potential)
        self.visited.add(node.potential)
        self.buffer.rank(node)
        if not node.resting:
            self._enter(node)

    def _enter(self, node: Node) -> None:
        self.eligible.add(node)
        if node.root:
            self.eligible_roots.add(node)

    def _leave(self, node: Node) -> None:
        self.eligible.remove(node)
        if node.root:
            self.eligible_roots.remove(node)

    # --- resting

    def _rest(self, node: Node) -> None:
        if not node.resting:
            self._leave(node)
            node.resting = True
        self.resting[node.id] = node
        self.resting.move_to_end(node.id)

    def _remember(self, node: Node) -> None:
        self._recent[node.id] = node
        self._recent.move_to_end(node.id)
        while not rests(next(iter(self._recent.values())), self.step, LONGEST_REST):
            self._recent.popitem(last=False)

    def advance(self, step: int, tau: int) -> None:
        """Time passes: who rests depends on the step, on τ and on the choices alone, so no event is needed."""
        self.step = max(self.step, step)
        while self.resting:
            node = next(iter(self.resting.values()))
            if rests(node, self.step, tau):
                return
            del self.resting[node.id]
            node.resting = False
            self._enter(node)

    def rest_longer(self, tau: int) -> None:
        """τ has grown: those chosen within it rest again. Costs as much as the choices of τ steps are many."""
        found = list(takewhile(lambda node: rests(node, self.step, tau), reversed(self._recent.values())))
        for node in reversed(found):
            self._rest(node)

    # --- restoring

    def fill(self, nodes: Sequence[Node], seen: Seen, *, step: int, choices: int, choice_sum: float, tau: int) -> None:
        """Be as after the events that led to these states and totals."""
        self.buffer.fill(nodes, seen)
        self.step, self.choices, self.choice_sum = step, choices, choice_sum
        self.visited = Potentials(node.potential for node in nodes if node.visits)
        for node in sorted((node for node in nodes if node.choices), key=lambda node: node.order):
            if rests(node, step, LONGEST_REST):
                self._recent[node.id] = node
            if rests(node, step, tau):
                node.resting = True
                self.resting[node.id] = node
        rested = [node for node in nodes if not node.resting]
        self.eligible = Ranking(rested)
        self.eligible_roots = Ranking(node for node in rested if node.root)


def rests(node: Node, step: int, tau: int) -> bool:
    """Whether a state is refractory at `step`: it was chosen within the last τ steps."""
    return node.last_chosen is not None and step - node.last_chosen <= tau


def _c_log_c(count: int) -> float:
    return count * math.log(count) if count else 0.0
