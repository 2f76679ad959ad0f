"""Packing sequences: each distinct prefix once, every sequence found again, whatever they have in common."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.agent.prefix import Node, common, pack


def test_a_group_and_its_prompt() -> None:
    prompt = list(range(100, 120))
    forest = pack([[*prompt, 1, 2, 3], [*prompt, 4], [*prompt, 5, 6]])
    assert forest.ids.tolist() == [*prompt, 1, 2, 3, 4, 5, 6]
    assert forest.positions.tolist() == [*range(20), 20, 21, 22, 20, 20, 21]
    assert forest.nodes == (Node(0, 20, 26), Node(20, 23, 23), Node(23, 24, 24), Node(24, 26, 26))
    assert [place.tolist()[19:] for place in forest.places] == [[19, 20, 21, 22], [19, 23], [19, 24, 25]]


def test_stages_extend_one_another() -> None:
    first = list(range(20))
    second = [*first, *range(40, 60)]
    forest = pack([[*second, *range(80, 100)], second, first, [*first, *range(60, 70)]])
    assert forest.ids.tolist() == [*range(20), *range(40, 60), *range(80, 100), *range(60, 70)]
    assert forest.nodes == (Node(0, 20, 70), Node(20, 40, 60), Node(40, 60, 60), Node(60, 70, 70))


def test_little_in_common_is_not_worth_a_branch() -> None:
    forest = pack([[1, 2, 3, 4], [1, 2, 3, 5]], min_shared=4)
    assert forest.nodes == (Node(0, 4, 4), Node(4, 8, 8))
    assert len(pack([[1, 2, 3, 4], [1, 2, 3, 5]], min_shared=3).ids) == 5


def test_equal_sequences_stand_once() -> None:
    forest = pack([[7] * 30] * 5)
    assert len(forest.ids) == 30
    assert forest.nodes == (Node(0, 30, 30),)


def test_common() -> None:
    assert [common([], [1]), common([1, 2], [1, 2, 3]), common([1, 2], [1, 3]), common([2], [1])] == [0, 2, 1, 0]


tokens = st.lists(st.integers(0, 2), min_size=1, max_size=12)


@settings(max_examples=200, deadline=None)
@given(st.lists(tokens, min_size=1, max_size=12), st.integers(1, 4))
def test_every_sequence_is_found_again_and_attends_to_itself_alone(sequences: list[list[int]], least: int) -> None:
    forest = pack(sequences, min_shared=least)
    seen = _sight(forest.nodes, len(forest.ids))
    for sequence, place in zip(sequences, forest.places, strict=True):
        assert forest.ids[place].tolist() == sequence
        assert forest.positions[place].tolist() == list(range(len(sequence)))
        for index, token in enumerate(place.tolist()):
            assert set(seen[token].nonzero().flatten().tolist()) == set(place[: index + 1].tolist())
    assert len(forest.ids) <= sum(map(len, sequences))
    distinct = {tuple(sequence[:stop]) for sequence in sequences for stop in range(1, len(sequence) + 1)}
    if least == 1:
        assert len(forest.ids) == len(distinct)


def _sight(nodes: tuple[Node, ...], length: int) -> torch.Tensor:
    """[token, token it attends to], as the kernel's calls make it."""
    seen = torch.zeros(length, length, dtype=torch.int)
    for node in nodes:
        own = slice(node.start, node.stop)
        seen[own, own] += torch.ones(node.stop - node.start, node.stop - node.start, dtype=torch.int).tril()
        seen[node.stop : node.end, own] += 1
    assert seen.max() <= 1, "nothing is attended to twice"
    return seen


def test_a_long_chain_of_stages() -> None:
    """Thousands of turns that each extend the one before."""
    whole = list(range(3000))
    forest = pack([whole[: turn + 1] for turn in range(3000)], min_shared=1)
    assert forest.ids.tolist() == whole
    assert forest.nodes[0] == Node(0, 1, 3000)
    assert forest.nodes[-1] == Node(2999, 3000, 3000)
    assert forest.places[1500].tolist() == whole[:1501]
