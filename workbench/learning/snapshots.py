"""The curriculum at a step as columns of numbers, so that a run goes on from there and replays only what came after.

A snapshot is derived from the events and never needed: one that is missing or damaged costs the time of replaying all.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from workbench.learning.buffer import Seen
from workbench.learning.pool import Pool
from workbench.learning.ranking import Node
from workbench.types import Kind

FORMAT = 1

LEAST = 4096
"""Events from one snapshot to the next, at the least (our choice): replaying these takes a tenth of a second."""

SHARE = 4
"""And at least one for every `SHARE` states in it (our choice): writing costs each event the same, however long the run
is, and what is left to replay is about a quarter of what is kept."""


class Unusable(Exception):
    """A snapshot that cannot be gone on from; the message says why, as part of a sentence."""


class Totals(NamedTuple):
    """What a snapshot holds beside the states."""

    step: int
    choices: int
    choice_sum: float
    roots: list[str]
    """Ids of the roots that the events were applied for, in order."""
    dropped: dict[str, int]
    """States that were passed over because nobody trains on their task, by task."""


_NONE = -1
"""Stands for no step."""

_COLUMNS: dict[str, tuple[str, Callable[[Node], float]]] = {
    "id": ("<u8", lambda node: int(node.id, 16)),
    "parent": ("<u8", lambda node: int(node.parent or "0", 16)),
    "root": ("u1", lambda node: node.root),
    "potential": ("<f8", lambda node: node.potential),
    "tie": ("<f8", lambda node: node.tie),
    "since": ("<i8", lambda node: node.since),
    "visits": ("<i8", lambda node: node.visits),
    "choices": ("<i8", lambda node: node.choices),
    "last_chosen": ("<i8", lambda node: _NONE if node.last_chosen is None else node.last_chosen),
    "order": ("<i8", lambda node: node.order),
    "mean": ("<f8", lambda node: node.mean),
    "std": ("<f8", lambda node: node.std),
}
"""Type and value of what is kept of each state, beside its (task, kind)."""


def due(events: int, pool: Pool) -> bool:
    """Whether a snapshot is worth its while, `events` events after the one before."""
    rows = len(pool.buffer) + len(pool.buffer.seen) // len(_COLUMNS)
    return events >= max(LEAST, rows // SHARE)


def take(pool: Pool, roots: Sequence[str], dropped: Mapping[str, int]) -> dict[str, bytes]:
    """The parts of a snapshot by name: columns, compressed (which adds a check sum), and `head`, JSON."""
    buffer = pool.buffer
    children = (buffer.nodes[entry[2]] for order in (buffer.children.fixed, buffer.children.fading) for entry in order)
    nodes = [*(node for node in buffer.nodes.values() if node.root), *children]  # ordered: quick to read back
    classes: dict[tuple[str, str], int] = {}
    places = [classes.setdefault((node.task, node.kind.value), len(classes)) for node in nodes]
    totals = Totals(pool.step, pool.choices, pool.choice_sum, list(roots), dict(dropped))
    head = {"format": FORMAT, "states": len(nodes), "classes": list(classes), **totals._asdict()}
    parts = {"head": _pack(json.dumps(head).encode())}
    for name, (kind, value) in _COLUMNS.items():
        parts[name] = _pack(np.fromiter(map(value, nodes), kind, len(nodes)).tobytes())
    parts["class"] = _pack(np.array(places, "<i8").tobytes())
    parts["seen"] = _pack(buffer.seen.numbers().astype("<u8").tobytes())
    return parts


def restore(pool: Pool, parts: Mapping[str, bytes], roots: Sequence[str], tau: int) -> Totals:
    """Fill an empty pool from a snapshot; raises `Unusable` where it is damaged or of other roots."""
    try:
        head = json.loads(zlib.decompress(parts["head"]))
        if head["format"] != FORMAT:
            raise Unusable(f"has format {head['format']}, not {FORMAT}")
        totals = Totals(**{name: head[name] for name in Totals._fields})
        classes = [(str(task), Kind(kind)) for task, kind in head["classes"]]
        columns = {name: _column(parts[name], kind, head["states"]) for name, (kind, _) in _COLUMNS.items()}
        places = [classes[place] for place in _column(parts["class"], "<i8", head["states"]).tolist()]
        seen = Seen(_column(parts["seen"], "<u8").astype(np.uint64))
    except (zlib.error, KeyError, IndexError, TypeError, ValueError) as error:
        raise Unusable(f"is damaged ({type(error).__name__}: {error})") from None
    if set(totals.roots) != set(roots):
        raise Unusable("was taken of other tasks than are trained on now")
    nodes = _nodes(places, {name: column.tolist() for name, column in columns.items()})
    pool.fill(nodes, seen, step=totals.step, choices=totals.choices, choice_sum=totals.choice_sum, tau=tau)
    return totals


def _nodes(places: Sequence[tuple[str, Kind]], columns: Mapping[str, list[Any]]) -> list[Node]:
    steps: dict[int, int] = {}  # one number in memory for all states of a step
    ids = [f"{number:016x}" for number in columns["id"]]
    known = dict(zip(columns["id"], ids, strict=True))
    rows = zip(ids, places, *(columns[name] for name in list(_COLUMNS)[1:]), strict=True)
    nodes: list[Node] = []
    for state_id, (task, kind), parent, root, potential, tie, since, visits, choices, last, order, mean, std in rows:
        node = Node(
            state_id,
            task,
            kind,
            (known.get(parent) or f"{parent:016x}") if parent else None,
            root=bool(root),
            potential=potential,
            tie=tie,
            since=steps.setdefault(since, since),
            visits=visits,
        )
        if choices:
            node.choices, node.last_chosen, node.order = choices, steps.setdefault(last, last), order
        if visits:
            node.mean, node.std = mean, std
        nodes.append(node)
    return nodes


def _pack(content: bytes) -> bytes:
    return zlib.compress(content, 1)


def _column(part: bytes, kind: str, count: int | None = None) -> npt.NDArray[Any]:
    column = np.frombuffer(zlib.decompress(part), kind)
    if count is not None and len(column) != count:
        raise ValueError(f"{len(column)} values for {count} states")
    return column
