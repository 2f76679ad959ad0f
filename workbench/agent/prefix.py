"""Token sequences as a forest in which what they begin with in common stands once.

The completions of a group share their prompt, the stages of a trajectory extend one another, states of one task share
its description, and scripts often begin alike: a causal model computes the same for all of them up to where they part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

Tokens = Sequence[int]

MIN_SHARED = 16
"""Tokens that two sequences must have in common, beyond a branch, for a branch of their own (our choice): each costs
some calls of the attention kernel in every layer."""


@dataclass(frozen=True, slots=True)
class Node:
    """A stretch of the packed tokens: [start, stop) are its own, [stop, end) those of the nodes below it."""

    start: int
    stop: int
    end: int


@dataclass(frozen=True, slots=True)
class Past:
    """Keys and values [K, P, D] of tokens that are not packed, and the rows [start, stop) that attend to them."""

    start: int
    stop: int
    keys: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True)
class Forest:
    """N packed tokens, parents before what is below them."""

    ids: Tensor
    """[N] int64."""
    positions: Tensor
    """[N] int64: of each token in its sequences."""
    nodes: tuple[Node, ...]
    places: tuple[Tensor, ...]
    """Of each sequence, in the order given: where its tokens stand, [length] int64."""


def pack(sequences: Sequence[Tokens], *, min_shared: int = MIN_SHARED) -> Forest:
    """The forest of some sequences; none of them may be empty."""
    order = sorted(range(len(sequences)), key=lambda index: tuple(sequences[index]))
    rows = [sequences[index] for index in order]
    shared = [common(first, second) for first, second in pairwise(rows)]
    stretches: list[tuple[int, int]] = []
    above: list[int] = []
    ids: list[int] = []
    positions: list[int] = []
    where: list[Tensor] = []
    place_of: dict[int, Tensor] = {}
    # Rows [first, last), of which `depth` tokens stand already, below some node; the next one last.
    waiting = [(first, last, 0, -1) for first, last in _runs(shared, 0, len(rows), min_shared)]
    waiting.reverse()
    while waiting:
        first, last, depth, parent = waiting.pop()
        reach = min(shared[first : last - 1], default=len(rows[first]))
        node, start = len(stretches), len(ids)
        ids.extend(rows[first][depth:reach])
        positions.extend(range(depth, reach))
        stretches.append((start, len(ids)))
        above.append(parent)
        own = torch.arange(start, len(ids))
        where.append(own if parent < 0 else torch.cat([where[parent], own]))
        if last - first == 1:
            place_of[order[first]] = where[node]
        else:
            runs = [*_runs(shared, first, last, reach + min_shared)]
            waiting += [(low, high, reach, node) for low, high in reversed(runs)]
    ends = [stop for _, stop in stretches]
    for node in reversed(range(len(ends))):
        if above[node] >= 0:
            ends[above[node]] = max(ends[above[node]], ends[node])
    nodes = tuple(Node(start, stop, end) for (start, stop), end in zip(stretches, ends, strict=True) if stop > start)
    places = tuple(place_of[index] for index in range(len(sequences)))
    return Forest(torch.tensor(ids), torch.tensor(positions), nodes, places)


def beside(forests: Sequence[Forest], offsets: Sequence[int]) -> tuple[Forest, list[slice]]:
    """Several forests as one, and where each stands in it; `offsets[f]` tokens come before those of forest f."""
    starts = list(accumulate((len(forest.ids) for forest in forests), initial=0))
    nodes, places = list[Node](), list[Tensor]()
    for forest, start in zip(forests, starts, strict=False):
        nodes += [Node(node.start + start, node.stop + start, node.end + start) for node in forest.nodes]
        places += [place + start for place in forest.places]
    positions = [forest.positions + offset for forest, offset in zip(forests, offsets, strict=True)]
    whole = Forest(torch.cat([forest.ids for forest in forests]), torch.cat(positions), tuple(nodes), tuple(places))
    return whole, [slice(start, stop) for start, stop in pairwise(starts)]


def _runs(shared: Sequence[int], low: int, high: int, least: int) -> Iterator[tuple[int, int]]:
    """Cut sorted rows [low, high) where neighbours have fewer than `least` tokens in common."""
    first = low
    for row in range(low, high):
        if row == high - 1 or shared[row] < least:
            yield first, row + 1
            first = row + 1


def common(first: Tokens, second: Tokens) -> int:
    """How many tokens two sequences begin with in common."""
    most = min(len(first), len(second))
    if tuple(first[:most]) == tuple(second[:most]):
        return most
    return next(index for index in range(most) if first[index] != second[index])
