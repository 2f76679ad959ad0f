"""Means, 95 % intervals and paired tests over tables [seeds, tasks], as design and README use the words.

A table holds one number per seed and task, NaN where there is none (all executions lost). Its mean gives every task the
same weight. `interval` draws seeds again and keeps the tasks: how another run on these tasks would come out.
`over_tasks=True` draws tasks again too: how it would on other tasks like these. Intervals are percentile bootstraps,
which are too narrow for two or three seeds; None below two.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import ArrayLike, NDArray

DRAWS = 2000
"""Bootstrap draws."""

EXACT = 12
"""Up to so many seeds all 2^n sign flips are tried; beyond, `FLIPS` random ones."""

FLIPS = 10_000

Table = NDArray[np.float64]


def as_table(values: ArrayLike) -> Table:
    """`values` [seeds] or [seeds, tasks] as a table whose seeds stand in an order of their own: in what order they were
    measured cannot change a bit of what is computed."""
    table = np.asarray(values, dtype=np.float64)
    if table.ndim == 1:
        table = table[:, np.newaxis]
    return table[np.lexsort(table.T[::-1])]


def mean(values: ArrayLike) -> float | None:
    """Mean over tasks of the mean over seeds; None without a number."""
    table = as_table(values)
    known = table[:, ~np.isnan(table).all(axis=0)]
    return float(np.nanmean(known, axis=0).mean()) if known.size else None


def interval(values: ArrayLike, *, over_tasks: bool = False, draws: int = DRAWS, seed: int = 0) -> list[float] | None:
    """95 % bootstrap interval of `mean`: over seeds with tasks fixed, or over both. None below two seeds, for
    `over_tasks` also below two tasks."""
    table = as_table(values)
    table = table[~np.isnan(table).all(axis=1)]
    table = table[:, ~np.isnan(table).all(axis=0)]
    if len(table) < 2 or (over_tasks and table.shape[1] < 2):
        return None
    generator = np.random.default_rng(seed)
    sums, counts = _drawn(generator, np.nan_to_num(table), ~np.isnan(table), draws)
    weights = _multiplicities(generator, table.shape[1], draws) if over_tasks else np.ones_like(sums)
    weights = np.where(counts > 0, weights, 0)
    totals = (weights * sums / np.maximum(counts, 1)).sum(axis=1)
    return _bounds(totals[weights.any(axis=1)] / weights.sum(axis=1)[weights.any(axis=1)])


def ratio(numerators: ArrayLike, denominators: ArrayLike) -> float | None:
    """Sum over sum, of counts per seed; None for nothing over nothing."""
    total = float(np.sum(denominators))
    return float(np.sum(numerators)) / total if total else None


def ratio_interval(numerators: ArrayLike, denominators: ArrayLike, *, seed: int = 0) -> list[float] | None:
    """95 % bootstrap interval of `ratio` over seeds; seeds without a count of their own say nothing."""
    pairs = np.column_stack([np.asarray(numerators, dtype=float), np.asarray(denominators, dtype=float)])
    pairs = as_table(pairs[pairs[:, 1] > 0])
    if len(pairs) < 2:
        return None
    weights = _multiplicities(np.random.default_rng(seed), len(pairs), DRAWS)
    return _bounds((weights @ pairs[:, 0]) / (weights @ pairs[:, 1]))


def paired(ours: ArrayLike, theirs: ArrayLike) -> dict[str, object]:
    """How two tables of the same seeds and tasks differ, ours minus theirs, pair by pair.

    `difference`, `difference_ci` (over seeds, tasks fixed), `difference_ci_tasks` (over both), and `p`: the share of
    sign flips of whole seeds whose mean difference is at least as far from 0 (two-sided; None below two seeds). A pair
    that lacks one side is left out. Raises ValueError for tables of different shapes.
    """
    one, other = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
    if one.shape != other.shape:
        raise ValueError(f"tables of {one.shape} and {other.shape} have no pairs")
    table = one - other
    return {
        "difference": mean(table),
        "difference_ci": interval(table),
        "difference_ci_tasks": interval(table, over_tasks=True),
        "p": sign_flip_p(table),
    }


def sign_flip_p(values: ArrayLike, *, seed: int = 0) -> float | None:
    """Two-sided p of a mean difference of 0, by flipping the signs of whole seeds: what belongs to one seed may depend
    on each other. Exact up to `EXACT` seeds. None below two seeds."""
    table = as_table(values)
    table = table[~np.isnan(table).all(axis=1)]
    n = len(table)
    if n < 2:
        return None
    known = ~np.isnan(table)
    shares = np.nan_to_num(table) / np.maximum(known.sum(axis=0), 1) / max(1, int(known.any(axis=0).sum()))
    per_seed = shares.sum(axis=1)  # these sum to the mean difference
    if n <= EXACT:
        signs = np.array(list(itertools.product((1.0, -1.0), repeat=n)))
    else:
        flips = np.random.default_rng(seed).choice((1.0, -1.0), size=(FLIPS, n))
        signs = np.vstack([np.ones(n), flips])  # the one that was seen is among them, so that p is never 0
    found = np.abs(signs @ per_seed)
    return float(np.mean(found >= found[0] - 1e-9 * np.abs(per_seed).sum()))  # equal sums differ by rounding


def _multiplicities(generator: np.random.Generator, n: int, draws: int) -> Table:
    """[draws, n]: how often each of n things is drawn when n are drawn with replacement."""
    return generator.multinomial(n, np.full(n, 1 / n), size=draws).astype(np.float64)


def _drawn(generator: np.random.Generator, table: Table, known: NDArray[np.bool_], draws: int) -> tuple[Table, Table]:
    """Sums and counts per draw and task [draws, tasks], seeds drawn again."""
    weights = _multiplicities(generator, len(table), draws)
    return weights @ table, weights @ known.astype(np.float64)


def _bounds(values: Table) -> list[float]:
    low, high = np.quantile(values, (0.025, 0.975))
    return [float(low), float(high)]
