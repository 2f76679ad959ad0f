"""The public facts of a task that prompts are rendered from, read from its public folder; nothing hidden is read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.tasks.mle import MleTask
from workbench.tasks.task import Task, stamp

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Column:
    """What a prompt says of one column of a table."""

    name: str
    kind: str
    """`int`, `float`, `bool` or `text`."""
    missing: int
    distinct: int
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Card:
    """The public facts of a task that prompts are rendered from."""

    metric: str
    higher_is_better: bool
    wants: str
    """A key of `prompts.WANTS`."""
    id_column: str
    target: Column
    submission: tuple[str, ...]
    """Header of sample_submission.csv."""
    train_rows: int
    test_rows: int
    columns: tuple[Column, ...]
    description: str = ""
    preview: str = ""
    files: tuple[str, ...] = ()
    """The public files with what they hold."""
    competition: bool = False
    """Of mle-bench: the files need not be train.csv and test.csv, so the compact card lists them too."""
    table: str = "train.csv"
    """Whose columns and first rows these are."""


def card(task: Task) -> Card:
    """Facts of a task, read from its public folder once and again when a file changes."""
    if not isinstance(task, MleTask):
        from workbench.agent.overview import bench_card

        return bench_card(task)
    paths = [task.public_dir / f"{name}.csv" for name in ("train", "test", "sample_submission")]
    facts = _read_card(tuple(paths), tuple(map(stamp, paths)), task.id_column, task.train_target)
    several = len(task.target_columns) > 1
    wants = "probabilities" if several and task.metric.wants == "probability" else task.metric.wants
    return replace(
        facts,
        metric=task.metric.name,
        higher_is_better=task.higher_is_better,
        wants=wants,
        description=task.description.strip(),
    )


@lru_cache(maxsize=256)
def _read_card(paths: tuple[Path, ...], changed: tuple[tuple[int, int], ...], id_column: str, target: str) -> Card:
    import pandas as pd

    train, test, sample = map(pd.read_csv, paths)
    return card_from_frames(train, test, sample, id_column, target)


def card_from_frames(
    train: pd.DataFrame, test: pd.DataFrame, sample: pd.DataFrame, id_column: str, target: str
) -> Card:
    """Facts that the public tables show; metric, wording of `wants` and description are filled in by the caller.
    `target` is a column of `train`."""
    features = [name for name in train.columns if name in test.columns and name != id_column]
    return Card(
        metric="",
        higher_is_better=True,
        wants="number",
        id_column=id_column,
        target=column_of(train[target]),
        submission=tuple(map(str, sample.columns)),
        train_rows=len(train),
        test_rows=len(test),
        columns=tuple(column_of(train[name]) for name in features),
        preview=train.head(3).to_csv(index=False),
        files=tuple(
            f"{name}.csv ({len(table):,} rows × {table.shape[1]:,} columns)"
            for name, table in (("train", train), ("test", test), ("sample_submission", sample))
        ),
    )


def column_of(values: pd.Series) -> Column:
    kind = {"i": "int", "u": "int", "f": "float", "b": "bool"}.get(getattr(values.dtype, "kind", "O"), "text")
    known = values.dropna()
    counted = known.value_counts()
    order = sorted(counted.index, key=lambda value: (-counted[value], str(value)))
    return Column(
        name=str(values.name),
        kind=kind,
        missing=int(values.isna().sum()),
        distinct=len(order),
        examples=tuple(_short(str(value)) for value in order[:3]),
    )


def _short(value: str) -> str:
    value = value.replace("\n", " ").replace("'", " ")
    return value if len(value) <= 16 else value[:15] + "…"
