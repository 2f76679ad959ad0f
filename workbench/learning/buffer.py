"""The evolving buffer of AceGRPO: what an action leads to (Φ), and which states are kept.

Every turn, success or failure, may give a new state: no valid submission → `debug`, a valid one → `improve`. Old states
are acted in anew; old actions are never trained on again. Draft roots stay for ever.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from workbench.agent.prompts import trim
from workbench.learning.events import Added
from workbench.learning.ranking import Node, Ranking
from workbench.types import Feedback, Kind, State, Turn, Verdict

KEPT_OUTPUT = 2000
"""Characters of output that a state carries for its prompt."""

KEPT_ERROR = 300
"""Characters of the error line."""

LATEST = 4096
"""Identities in a set at the least, before they are merged into an array."""


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
    return State(task, Kind.DEBUG, code, why_invalid(feedback), trim(feedback.stderr, KEPT_OUTPUT), parent=parent)


def why_invalid(feedback: Feedback) -> str:
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


class Seen:
    """Identities of all states that are or ever were kept, 8 bytes each: a sorted array, and a set of the latest.

    Measured with a million of them: 9 MB and 2 µs a question; a set of numbers takes 82 MB, one of strings 114 MB, and
    a unique index of SQLite 8 µs.
    """

    def __init__(self, numbers: npt.NDArray[np.uint64] | None = None) -> None:
        """`numbers`: what `numbers` gave."""
        self._sorted = np.empty(0, np.uint64) if numbers is None else numbers
        self._latest: set[int] = set()

    def __len__(self) -> int:
        return len(self._sorted) + len(self._latest)

    def __contains__(self, identity: str) -> bool:
        number = int(identity, 16)
        if number in self._latest:
            return True
        place = int(np.searchsorted(self._sorted, np.uint64(number)))
        return place < len(self._sorted) and int(self._sorted[place]) == number

    def add(self, identity: str) -> None:
        """Take in an identity (16 hexadecimal digits) that is not there."""
        self._latest.add(int(identity, 16))
        if len(self._latest) > max(LATEST, len(self._sorted) // 8):  # by growth: merging costs each the same
            self.numbers()

    def numbers(self) -> npt.NDArray[np.uint64]:
        """All of them, rising."""
        if self._latest:
            latest = np.fromiter(self._latest, np.uint64, len(self._latest))
            self._sorted = np.sort(np.concatenate((self._sorted, latest)))
            self._latest.clear()
        return self._sorted


class Buffer:
    """The states kept, each once, with limits on their number. Which to act in is decided elsewhere (sampler.py)."""

    def __init__(self, capacity: int, children_cap: int) -> None:
        self.capacity = capacity
        self.children_cap = children_cap
        self.nodes: dict[str, Node] = {}
        self.seen = Seen()
        self.children = Ranking()
        self._by_class: dict[tuple[str, Kind], Ranking] = {}
        self._sizes = Counter[Kind]()

    def __len__(self) -> int:
        return len(self.nodes)

    def __contains__(self, state_id: object) -> bool:
        return state_id in self.nodes

    def insert(self, event: Added) -> Node:
        """Keep the state of an event."""
        parent = self.nodes.get(event.parent or "")
        node = Node(
            event.state_id,
            sys.intern(event.task),
            event.kind,
            parent.id if parent else event.parent,  # one text in memory for parent and children
            root=event.root,
            potential=event.potential,
            tie=event.tie,
            since=event.step,
        )
        self.seen.add(event.identity)
        self.nodes[node.id] = node
        self._sizes[node.kind] += 1
        self.rank(node)
        return node

    def remove(self, state_id: str) -> Node:
        """Drop a state; it stays known."""
        node = self.nodes.pop(state_id)
        self._sizes[node.kind] -= 1
        self.unrank(node)
        return node

    def fill(self, nodes: Sequence[Node], seen: Seen) -> None:
        """Hold these states, and nothing of before; quickest in the order of `children`."""
        self.nodes = {node.id: node for node in nodes}
        self.seen = seen
        self._sizes = Counter(node.kind for node in nodes)
        by_class: dict[tuple[str, Kind], list[Node]] = {}
        children = [node for node in nodes if not node.root]
        for node in children:
            by_class.setdefault((node.task, node.kind), []).append(node)
        self.children = Ranking(children)
        self._by_class = {place: Ranking(members) for place, members in by_class.items()}

    def rank(self, node: Node) -> None:
        """Enter a child into the orders of eviction, by its present P."""
        if not node.root:
            self.children.add(node)
            place = node.task, node.kind
            if place not in self._by_class:
                self._by_class[place] = Ranking()
            self._by_class[place].add(node)

    def unrank(self, node: Node) -> None:
        """Take it out of them; to be done before its P changes."""
        if not node.root:
            self.children.remove(node)
            self._by_class[node.task, node.kind].remove(node)

    def overflow(self, added: Node, step: int) -> str | None:
        """Id of the child that must go now that `added` is in: lowest P of its (task, kind), or of all; else None."""
        same = self._by_class.get((added.task, added.kind))
        if same is not None and len(same) > self.children_cap:
            return same.lowest(step)
        return self.children.lowest(step) if len(self.nodes) > self.capacity else None

    def sizes(self) -> dict[Kind, int]:
        """States kept by kind."""
        return {kind: self._sizes[kind] for kind in Kind}
