"""What is recorded in a run, read back: rows of `run.sqlite` as data frames and records.

Each function takes a connection whose row_factory is sqlite3.Row, and sees one moment of the database.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pandas as pd

from workbench import database
from workbench.database import STATE_COLUMNS, TURN_COLUMNS, cell_text, load
from workbench.types import Group, State

KNOB_COLUMNS = ["step", "at", "knob", "old", "new", "source", "outcome", "reason"]


def metrics(connection: sqlite3.Connection, since: int) -> pd.DataFrame:
    """One row per step from `since` on: step, at, then the metrics; NaN where a step has none."""
    connection.execute("BEGIN")  # both queries see the same moment
    steps = connection.execute("SELECT step, at FROM steps WHERE step >= ? ORDER BY step", (since,)).fetchall()
    cells = connection.execute(
        "SELECT step, name, value FROM metrics WHERE step >= ? ORDER BY rowid", (since,)
    ).fetchall()
    frame = pd.DataFrame([tuple(row) for row in steps], columns=["step", "at"])
    position = {row["step"]: n for n, row in enumerate(steps)}
    names = dict.fromkeys(row["name"] for row in cells)
    columns: dict[str, list[float]] = {name: [float("nan")] * len(steps) for name in names}
    for step, name, value in cells:
        if value is not None:
            columns[name][position[step]] = value
    return pd.concat([frame, pd.DataFrame(columns, index=frame.index, dtype=float)], axis=1)


def turns(
    connection: sqlite3.Connection, step: int | None, tokens: bool, columns: Sequence[str] | None
) -> pd.DataFrame:
    """One row per turn, with `columns` (None: TURN_COLUMNS, ids and log-probabilities only with `tokens`).

    Raises ValueError for a column that turns do not have.
    """
    if columns is None:
        columns = [c for c in TURN_COLUMNS if tokens or c not in ("token_ids", "sampler_logprobs")]
    if unknown := [name for name in columns if name not in TURN_COLUMNS]:
        raise ValueError(f"turns have no column {unknown[0]!r}: they have {', '.join(TURN_COLUMNS)}")
    where, values = ("", ()) if step is None else ("WHERE step = ?", (step,))
    query = f"SELECT {', '.join(columns)} FROM turns {where} ORDER BY step, position, member"
    return _frame(columns, connection.execute(query, values))


def states(connection: sqlite3.Connection) -> pd.DataFrame:
    """One row per state, columns STATE_COLUMNS, in order of the step that first had it."""
    return _frame(
        STATE_COLUMNS, connection.execute(f"SELECT {', '.join(STATE_COLUMNS)} FROM states ORDER BY step, rowid")
    )


def find_states(connection: sqlite3.Connection, ids: Sequence[str]) -> dict[str, State]:
    """The states with these ids, by id, as far as they are there."""
    rows = (connection.execute("SELECT * FROM states WHERE id = ?", (state_id,)).fetchone() for state_id in ids)
    return {row["id"]: database.row_state(row) for row in rows if row is not None}


def groups(connection: sqlite3.Connection, step: int) -> list[Group]:
    """The groups of one step, equal to those committed but for streams that were cut."""
    connection.execute("BEGIN")
    rows = connection.execute("SELECT * FROM groups WHERE step = ? ORDER BY position", (step,)).fetchall()
    of_step = "SELECT * FROM turns WHERE step = ? ORDER BY position, member"
    members: dict[int, list[sqlite3.Row]] = {}
    for turn in connection.execute(of_step, (step,)):
        members.setdefault(turn["position"], []).append(turn)
    found = connection.execute("SELECT * FROM states WHERE id IN (SELECT state FROM groups WHERE step = ?)", (step,))
    by_id = {row["id"]: database.row_state(row) for row in found}
    return [
        Group(
            row["id"],
            by_id[row["state"]],
            database.cell_ids(row["prompt_ids"]),
            tuple(database.row_turn(turn, by_id[row["state"]]) for turn in members.get(row["position"], [])),
        )
        for row in rows
    ]


def knob_events(connection: sqlite3.Connection) -> pd.DataFrame:
    """One row per request, columns KNOB_COLUMNS and whatever else the events hold."""
    rows = connection.execute("SELECT step, event FROM knobs ORDER BY seq")
    events: list[dict[str, Any]] = [{**load(row["event"]), "step": row["step"]} for row in rows]
    names = [*KNOB_COLUMNS, *dict.fromkeys(name for event in events for name in event if name not in KNOB_COLUMNS)]
    return pd.DataFrame([[event.get(name) for name in names] for event in events], columns=names, dtype=object)


_READ: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("text", "reason", "code", "stdout", "stderr", "error", "output"), cell_text),
    "components": lambda cell: load(cell) if cell else {},
    "token_ids": database.cell_ids,
    "sampler_logprobs": database.cell_floats,
}
"""How the cells of a column are read, where they are not values as they stand."""


def _frame(columns: Sequence[str], rows: Iterable[sqlite3.Row]) -> pd.DataFrame:
    cells = list(zip(*rows, strict=True)) or [() for _ in columns]
    # Read cells are of dtype object: pandas' own string type refuses lone surrogates.
    data = {
        name: pd.Series([_READ[name](cell) for cell in column], dtype=object) if name in _READ else column
        for name, column in zip(columns, cells, strict=True)
    }
    return pd.DataFrame(data, columns=list(columns))
