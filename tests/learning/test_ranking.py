"""The order of states by P at any step against a plain sort, and the laws of drawing against their exact chances."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from workbench.learning.ranking import HALF_LIFE, PROPORTIONAL, UNIFORM, ZIPF, Draw, Node, Ranking, zipf
from workbench.types import Kind, State

RARE = 1e-4
"""A draw that is right fails a chi-square test this often over seeds; the seeds here are fixed."""


def node(name: str, potential: float, *, since: int | None = None, tie: float = 0.5) -> Node:
    """A visited state, or with `since` an unvisited child that entered then."""
    return Node(
        State("task", Kind.DEBUG, code=name).id,
        "task",
        Kind.DEBUG,
        None,
        root=False,
        potential=potential,
        tie=tie,
        since=since or 0,
        visits=int(since is None),
    )


def ranking(nodes: Sequence[Node]) -> Ranking:
    made = Ranking()
    for entry in nodes:
        made.add(entry)
    return made


def assert_follows(counts: Sequence[int], chances: Sequence[float]) -> None:
    total = sum(counts)
    assert sum(chances) == pytest.approx(1)
    for count, chance in zip(counts, chances, strict=True):
        assert chance > 0 or count == 0
    seen = [(count, chance * total) for count, chance in zip(counts, chances, strict=True) if chance > 0]
    statistic = sum((count - expected) ** 2 / expected for count, expected in seen)
    assert statistic < stats.chi2.ppf(1 - RARE, max(len(seen) - 1, 1))


# --- order


def test_an_unvisited_child_halves_every_twenty_steps_and_falls_behind() -> None:
    young, old, visited = node("young", 0.8, since=10), node("old", 0.8, since=0), node("visited", 0.5)
    assert [young.potential_at(step) for step in (10, 30, 50)] == pytest.approx([0.8, 0.4, 0.2])
    assert visited.potential_at(1000) == 0.5
    order = ranking([visited, old, young])
    assert [order.at(rank, 10) for rank in range(3)] == [young.id, old.id, visited.id]  # 0.8, 0.57, 0.5
    assert [order.at(rank, 20) for rank in range(3)] == [young.id, visited.id, old.id]  # 0.57, 0.5, 0.4
    assert [order.at(rank, 40) for rank in range(3)] == [visited.id, young.id, old.id]  # 0.5, 0.28, 0.2
    assert order.lowest(40) == old.id
    assert Ranking().lowest(3) is None


def test_equal_potentials_are_ordered_by_the_key_drawn_at_insertion() -> None:
    nodes = [node(f"s{i}", 0.25, tie=tie) for i, tie in enumerate((0.9, 0.1, 0.5))]
    order = ranking(nodes)
    assert [order.at(rank, 7) for rank in range(3)] == [nodes[1].id, nodes[2].id, nodes[0].id]


@given(
    states=st.lists(
        st.tuples(st.integers(0, 1000), st.one_of(st.none(), st.integers(0, 40)), st.floats(0, 1)), max_size=30
    ),
    step=st.integers(40, 200),
)
def test_ranks_are_those_of_a_plain_sort(states: list[tuple[int, int | None, float]], step: int) -> None:
    nodes = [node(f"s{i}", p / 1000, since=since, tie=tie) for i, (p, since, tie) in enumerate(states)]
    order = ranking(nodes)
    found = [order.at(rank, step) for rank in range(len(nodes))]
    assert sorted(found) == sorted(n.id for n in nodes)
    by_id = {n.id: n.potential_at(step) for n in nodes}
    potentials = [by_id[state_id] for state_id in found]
    # Neighbours may stand the other way round when their P agree to the last bits.
    assert all(a >= b * (1 - 1e-12) for a, b in pairwise(potentials))
    assert {order.any(index) for index in range(len(nodes))} == set(found)
    for entry in nodes[::2]:
        order.remove(entry)
    assert {order.any(index) for index in range(len(order))} == {n.id for n in nodes[1::2]}


# --- draws


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 1.7, 6.0])
@pytest.mark.parametrize("n", [1, 2, 9, 40])
def test_zipf_draws_follow_their_law(exponent: float, n: int) -> None:
    generator = random.Random(f"{exponent}/{n}")
    counts = Counter(zipf(generator, n, exponent) for _ in range(8000))
    weights = [k**-exponent for k in range(1, n + 1)]
    chances = [weight / sum(weights) for weight in weights]
    # Ranks of less than five expected draws are pooled, as the chi-square test wants.
    kept = [k for k in range(n) if chances[k] * 8000 >= 5]
    pooled = [counts[k + 1] for k in kept], [chances[k] for k in kept]
    rest = 1 - sum(pooled[1])
    if rest > 1e-12:
        pooled = [*pooled[0], 8000 - sum(pooled[0])], [*pooled[1], rest]
    assert min(counts) >= 1
    assert max(counts) <= n
    assert_follows(*pooled)


class Counting(random.Random):
    """Counts how often it is asked."""

    asked = 0

    def random(self) -> float:
        self.asked += 1
        return super().random()


@pytest.mark.parametrize("exponent", [0.0, 1.0, 3.0])
def test_a_draw_from_a_million_ranks_costs_what_one_from_ten_does(exponent: float) -> None:
    for n in (10, 1_000_000):
        generator = Counting(0)
        assert all(1 <= zipf(generator, n, exponent) <= n for _ in range(2000))
        assert generator.asked < 2000 * 1.3


def mixed() -> list[Node]:
    """Fixed and fading states, one without any P; at step 20 their P are 0.6, 0.4, 0.15, 0.05, 0.01, 0."""
    fixed = [node("a", 0.6), node("b", 0.15), node("c", 0.01), node("d", 0.0)]
    return [*fixed, node("e", 0.8, since=0), node("f", 0.1, since=0)]


@pytest.mark.parametrize(("draw", "rho"), [(ZIPF, 1.0), (ZIPF, 0.3), (UNIFORM, 1.0), (PROPORTIONAL, 1.0)])
def test_draws_follow_the_chances_that_views_show(draw: Draw, rho: float) -> None:
    nodes, step = mixed(), HALF_LIFE
    order = ranking(nodes)
    ranked = sorted(nodes, key=lambda n: -n.potential_at(step))
    chances = draw.chances([n.potential_at(step) for n in ranked], rho)
    generator = random.Random(1)
    counts = Counter(draw.sample(generator, order, step, rho) for _ in range(10_000))
    assert_follows([counts[n.id] for n in ranked], chances)


def test_chances_by_hand() -> None:
    assert ZIPF.chances([0.9, 0.5, 0.1], 1.0) == pytest.approx([6 / 11, 3 / 11, 2 / 11])
    assert ZIPF.chances([0.9, 0.5, 0.1], 0.0) == pytest.approx([1 / 3] * 3)
    assert UNIFORM.chances([0.9, 0.1], 5.0) == [0.5, 0.5]
    assert PROPORTIONAL.chances([0.6, 0.3, 0.0], 1.0) == pytest.approx([2 / 3, 1 / 3, 0])


@pytest.mark.parametrize("draw", [ZIPF, UNIFORM, PROPORTIONAL])
def test_states_without_potential_are_drawn_all_the_same(draw: Draw) -> None:
    nodes = [node(f"s{i}", 0.0, tie=i / 4) for i in range(4)]
    order, generator = ranking(nodes), random.Random(3)
    counts = Counter(draw.sample(generator, order, 9, 0.0) for _ in range(4000))
    assert_follows([counts[n.id] for n in nodes], [0.25] * 4)
    assert draw.chances([0.0] * 4, 0.0) == pytest.approx([0.25] * 4)


def test_a_single_state_is_drawn_whatever_its_potential() -> None:
    for draw in (ZIPF, UNIFORM, PROPORTIONAL):
        for potential in (0.0, 1e-300, 1.0):
            one = node("one", potential)
            assert draw.sample(random.Random(0), ranking([one]), 3, 1.0) == one.id
            assert math.isclose(draw.chances([potential], 1.0)[0], 1.0)
