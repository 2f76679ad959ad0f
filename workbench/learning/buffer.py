"""The evolving buffer of AceGRPO: what an action leads to (Φ), and which states are kept.

Every turn, success or failure, may give a new state: no valid submission → `debug`, a valid one → `improve`. Old states
are acted in anew; old actions are never trained on again. Draft roots stay for ever.
"""

from __future__ import annotations

import re
from dataclasses import replace

from workbench.agent.prompts import trim
from workbench.learning.events import Added
from workbench.learning.ranking import Node, Ranking
from workbench.types import Feedback, Kind, State, Turn, Verdict

KEPT_OUTPUT = 2000
"""Characters of output that a state carries for its prompt."""

KEPT_ERROR = 300
"""Characters of the error line."""


def child(turn: Turn) -> State | None:
    """Φ: the state that `turn` leads to. None without code (nothing to debug) and for `infrastructure` (nothing known).

    An `improve` state carries the script, the validation score it printed of itself and its stdout; a `debug` state the
    script, one readable error line and its stderr. No hidden score enters a state.
    """
    feedback = turn.feedback
    if feedback.verdict is Verdict.INFRASTRUCTURE or feedback.code is None:
        return None
    task, code, parent = turn.state.task, feedback.code, turn.state.id
    if feedback.valid:
        output = trim(feedback.stdout, KEPT_OUTPUT)
        return State(task, Kind.IMPROVE, code, output=output, score=feedback.own_score, parent=parent)
    return State(task, Kind.DEBUG, code, error_line(feedback), trim(feedback.stderr, KEPT_OUTPUT), parent=parent)


def error_line(feedback: Feedback) -> str:
    """Why there was no valid submission, readably: the reason, else the last line of stderr, else the verdict."""
    for text in (feedback.reason or "", feedback.stderr):
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        if lines:
            return lines[-1][:KEPT_ERROR]
    return feedback.verdict.value


def signature(error: str) -> str:
    """The error line without what differs between equal failures: addresses, folders and numbers."""
    text = re.sub(r"0x[0-9a-fA-F]+", "0x", error)
    text = re.sub(r"(?:[A-Za-z]:)?(?:[\\/][^\s\\/'\":,]+)*[\\/](?=[^\s\\/'\":,])", "", text)
    return re.sub(r"\d+(?:\.\d+)?(?:[eE][-+]?\d+)?", "#", text)


def identity(state: State) -> str:
    """Equal for states that differ at most in what `signature` drops: (task, kind, code, error signature)."""
    return replace(state, error=signature(state.error)).id if state.error else state.id


class Buffer:
    """The states kept, each once, with limits on their number. Which to act in is decided elsewhere (sampler.py)."""

    def __init__(self, capacity: int, children_cap: int) -> None:
        self.capacity = capacity
        self.children_cap = children_cap
        self.nodes: dict[str, Node] = {}
        self._seen: set[str] = set()
        self._children = Ranking()
        self._by_class: dict[tuple[str, Kind], Ranking] = {}
        self._drafts = 0

    def __len__(self) -> int:
        return len(self.nodes)

    def __contains__(self, state_id: object) -> bool:
        return state_id in self.nodes

    def known(self, state: State) -> bool:
        """Whether an equal state is kept or was ever kept."""
        return identity(state) in self._seen

    def insert(self, event: Added) -> Node:
        """Keep the state of an event."""
        node = Node(event.state, event.root, event.potential, event.tie, event.step)
        self._seen.add(identity(event.state))
        self.nodes[node.id] = node
        self.rank(node)
        return node

    def remove(self, state_id: str) -> Node:
        """Drop a state; it stays known."""
        node = self.nodes.pop(state_id)
        self.unrank(node)
        return node

    def rank(self, node: Node) -> None:
        """Enter a child into the orders of eviction, by its present P."""
        for ranking in self._rankings(node):
            ranking.add(node)

    def unrank(self, node: Node) -> None:
        """Take it out of them; to be done before its P changes."""
        for ranking in self._rankings(node):
            ranking.remove(node)

    def _rankings(self, node: Node) -> tuple[Ranking, ...]:
        if node.root:
            return ()
        return self._children, self._by_class.setdefault((node.state.task, node.state.kind), Ranking())

    def overflow(self, added: State, step: int) -> str | None:
        """Id of the child that must go now that `added` is in: lowest P of its (task, kind), or of all; else None."""
        same = self._by_class.get((added.task, added.kind))
        if same is not None and len(same) > self.children_cap:
            return same.lowest(step)
        return self._children.lowest(step) if len(self.nodes) > self.capacity else None

    def sizes(self) -> dict[Kind, int]:
        """States kept by kind."""
        sizes = dict.fromkeys(Kind, 0)
        for (_, kind), ranking in self._by_class.items():
            sizes[kind] += len(ranking)
        sizes[Kind.DRAFT] += len(self.nodes) - len(self._children)
        return sizes
