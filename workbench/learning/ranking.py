"""States in order of P at any moment, and random draws from that order, at a cost that hardly grows with their number.

P of a state that was visited, and of a root, stands still. P of an unvisited child fades with a half-life of
`HALF_LIFE` steps. All of them fade at the same rate, so their order among each other never changes: with
log2 P(t) = log2 P(t0) - (t - t0) / HALF_LIFE, the key log2 P(t0) + t0 / HALF_LIFE is constant. Two sorted lists, one
of each sort, therefore stay right without any work as time passes, and a rank is found by merging them with a binary
search. (Halving in jumps every `HALF_LIFE` steps would agree at those steps and cost re-ranking at each of them.)
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from sortedcontainers import SortedList

from workbench.types import Kind

HALF_LIFE = 20
"""Steps in which an unvisited child's P halves."""

Entry = tuple[float, float, str]
"""(-log2 P, less t0 / HALF_LIFE for fading ones; tie key; state id): ascending is from the highest P down."""


class Node:
    """What is known of a state in the buffer, some 450 bytes: what the state says (code, error, output) is not here."""

    __slots__ = (
        "choices",
        "entry",
        "id",
        "kind",
        "last_chosen",
        "mean",
        "order",
        "parent",
        "potential",
        "resting",
        "root",
        "since",
        "std",
        "task",
        "tie",
        "visits",
    )

    def __init__(
        self,
        state_id: str,
        task: str,
        kind: Kind,
        parent: str | None,
        *,
        root: bool,
        potential: float,
        tie: float,
        since: int,
        visits: int = 0,
    ) -> None:
        self.id = state_id
        self.task = task
        self.kind = kind
        self.parent = parent
        self.root = root
        self.tie = tie
        self.since = since
        self.visits = visits
        """Times its rewards came in."""
        self.choices = 0
        self.last_chosen: int | None = None
        self.order = 0
        """Number of the latest choice of this state among all choices."""
        self.resting = False
        self.mean = self.std = math.nan
        """Of the latest group's rewards."""
        self.set_potential(potential)

    @property
    def fading(self) -> bool:
        return not self.root and self.visits == 0

    def set_potential(self, potential: float) -> None:
        """Set P as of step `since` (fading) or for good. The node must be in no ranking."""
        self.potential = potential
        key = math.log2(potential) if potential > 0 else -math.inf
        self.entry: Entry = (-(key + self.since / HALF_LIFE) if self.fading else -key, self.tie, self.id)

    def potential_at(self, step: int) -> float:
        """P at a step."""
        return self.potential * 2.0 ** ((self.since - step) / HALF_LIFE) if self.fading else self.potential


class Ranking:
    """Nodes ordered by P, highest first; equal P by tie key. Adding, removing, finding a rank: O(log n)."""

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        fixed: list[Entry] = []
        fading: list[Entry] = []
        for node in nodes:
            (fading if node.fading else fixed).append(node.entry)
        self.fixed: SortedList = SortedList(fixed)
        self.fading: SortedList = SortedList(fading)

    def __len__(self) -> int:
        return len(self.fixed) + len(self.fading)

    def add(self, node: Node) -> None:
        (self.fading if node.fading else self.fixed).add(node.entry)

    def remove(self, node: Node) -> None:
        (self.fading if node.fading else self.fixed).remove(node.entry)

    def any(self, index: int) -> str:
        """Id of the state at `index` of an arbitrary order that is the same for equal contents."""
        fixed = len(self.fixed)
        entry: Entry = self.fixed[index] if index < fixed else self.fading[index - fixed]
        return entry[2]

    def at(self, rank: int, step: int) -> str:
        """Id of the state with `rank` states (0-based) of higher P at `step`."""
        fixed, fading, shift = self.fixed, self.fading, step / HALF_LIFE
        low, high = max(0, rank - len(fading)), min(rank, len(fixed))
        while low < high:  # how many of the first `rank` states are fixed ones
            middle = (low + high) // 2
            if _before(fixed[middle], fading[rank - middle - 1], shift):
                low = middle + 1
            else:
                high = middle
        more = low < len(fixed)
        if more and rank - low < len(fading):
            more = _before(fixed[low], fading[rank - low], shift)
        entry: Entry = fixed[low] if more else fading[rank - low]
        return entry[2]

    def lowest(self, step: int) -> str | None:
        """Id of the state with the lowest P at `step`; None when empty."""
        return self.at(len(self) - 1, step) if len(self) else None


def _before(fixed: Entry, fading: Entry, shift: float) -> bool:
    return fixed[:2] < (fading[0] + shift, fading[1])


class Potentials:
    """P of the visited states, in order, with their exact sum: adding and removing leaves no rounding behind."""

    _UNIT = 2**60

    def __init__(self, potentials: Iterable[float] = ()) -> None:
        self._sorted: SortedList = SortedList(potentials)
        self._sum = sum(int(potential * self._UNIT) for potential in self._sorted)

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


# --- draws


class Draw(NamedTuple):
    """How one state is drawn, and the exact chances of the same law for a view or a test."""

    sample: Callable[[random.Random, Ranking, int, float], str]
    """(generator, ranking that is not empty, step, ρ) → state id."""
    chances: Callable[[Sequence[float], float], list[float]]
    """(P from the highest down, ρ) → probability of each."""


def zipf(generator: random.Random, n: int, exponent: float) -> int:
    """A rank k in 1 … n with probability ∝ k^(-exponent), exponent ≥ 0, in O(1) time and memory.

    Rejection-inversion (Hörmann & Derflinger 1996): invert the integral H of the density's hull and accept nearly
    always. The forms through expm1 and log1p hold for every exponent, 0 and 1 included.
    """

    def integral(x: float) -> float:
        log_x = math.log(x)
        return _ratio(math.expm1, (1 - exponent) * log_x) * log_x

    def inverse(y: float) -> float:
        return math.exp(_ratio(math.log1p, max(-1.0 + 1e-16, y * (1 - exponent))) * y)

    def density(x: float) -> float:
        return math.exp(-exponent * math.log(x))

    first, last = integral(1.5) - 1, integral(n + 0.5)
    sure = 2 - inverse(integral(2.5) - density(2))
    while True:
        u = last + generator.random() * (first - last)
        x = inverse(u)
        k = min(max(int(x + 0.5), 1), n)
        if k - x <= sure or u >= integral(k + 0.5) - density(k):
            return k


def _ratio(function: Callable[[float], float], x: float) -> float:
    """function(x) / x for expm1 and log1p, with its limit 1 at 0."""
    return function(x) / x if abs(x) > 1e-12 else 1.0


def _zipf_sample(generator: random.Random, ranking: Ranking, step: int, rho: float) -> str:
    return ranking.at(zipf(generator, len(ranking), rho) - 1, step)


def _zipf_chances(potentials: Sequence[float], rho: float) -> list[float]:
    return _normalised([(rank + 1) ** -rho for rank in range(len(potentials))])


def _uniform_sample(generator: random.Random, ranking: Ranking, step: int, rho: float) -> str:
    return ranking.any(generator.randrange(len(ranking)))


def _uniform_chances(potentials: Sequence[float], rho: float) -> list[float]:
    return [1 / len(potentials)] * len(potentials)


_OCTAVES = 40
"""Factors of two below the highest P = 1 down to which P can be drawn; less counts as 0."""


def _proportional_sample(generator: random.Random, ranking: Ranking, step: int, rho: float) -> str:
    """∝ P: draw an octave (2^-(j+1), 2^-j] by its size · 2^-j, a state inside it, and accept with P / 2^-j ≥ 1/2."""
    shift = step / HALF_LIFE
    octaves: list[tuple[float, int, int, int, int]] = []
    fixed_end = fading_end = 0
    weights: list[float] = []
    for j in range(_OCTAVES):
        fixed_start, fading_start = fixed_end, fading_end
        fixed_end = ranking.fixed.bisect_left((j + 1.0,))
        fading_end = ranking.fading.bisect_left((j + 1.0 - shift,))
        octaves.append((float(j), fixed_start, fixed_end - fixed_start, fading_start, fading_end - fading_start))
        weights.append((fixed_end - fixed_start + fading_end - fading_start) * 2.0**-j)
        if fixed_end == len(ranking.fixed) and fading_end == len(ranking.fading):
            break
    if not any(weights):
        return _uniform_sample(generator, ranking, step, rho)
    while True:
        j_, fixed_start, fixed, fading_start, fading = generator.choices(octaves, weights)[0]
        index = generator.randrange(fixed + fading)
        entry: Entry = (
            ranking.fixed[fixed_start + index] if index < fixed else ranking.fading[fading_start + index - fixed]
        )
        below = entry[0] + (0.0 if index < fixed else shift) - j_
        if generator.random() < 2.0**-below:
            return entry[2]


def _proportional_chances(potentials: Sequence[float], rho: float) -> list[float]:
    drawn = [potential if potential > 2.0**-_OCTAVES else 0.0 for potential in potentials]
    return _normalised(drawn) if any(drawn) else _uniform_chances(potentials, rho)


def _normalised(weights: Sequence[float]) -> list[float]:
    total = math.fsum(weights)
    return [weight / total for weight in weights]


ZIPF = Draw(_zipf_sample, _zipf_chances)
UNIFORM = Draw(_uniform_sample, _uniform_chances)
PROPORTIONAL = Draw(_proportional_sample, _proportional_chances)
