"""What is recorded in a run, read back: rows of `run.sqlite` as data frames and records.

Each function takes a connection whose row_factory is sqlite3.Row, and sees one moment of the database.
"""

from __future__ import annotations

import sqlite3
from typing import Any

import pandas as pd

from workbench import database
from workbench.database import STATE_COLUMNS, TURN_COLUMNS, cell_text, load
from workbench.types import Group

KNOB_COLUMNS = ["step", "at", "knob", "old", "new", "source", "outcome", "reason"]


def metrics(connection: sqlite3.Connection, since: int) -> pd.DataFrame:
    """One row per step from `since` on: step, at, then the metrics; NaN where a step has none."""
    connection.execute("BEGIN")  # both queries see the same moment
    steps = connection.execute("SELECT step, at FROM steps WHERE step >= ? ORDER BY step", (since,)).fetchall()
    cells = connection.execute("SELECT step, name, value FROM metrics WHERE step >= ?", (since,)).fetchall()
    frame = pd.DataFrame([tuple(row) for row in steps], columns=["step", "at"])
    position = {row["step"]: n for n, row in enumerate(steps)}
    names = dict.fromkeys(row["name"] for row in cells)
    columns: dict[str, list[float]] = {name: [float("nan")] * len(steps) for name in names}
    for step, name, value in cells:
        if value is not None:
            columns[name][position[step]] = value
    return pd.concat([frame, pd.DataFrame(columns, index=frame.index, dtype=float)], axis=1)


def turns(connection: sqlite3.Connection, step: int | None, tokens: bool) -> pd.DataFrame:
    """One row per turn, columns TURN_COLUMNS; ids and log-probabilities only with `tokens`."""
    columns = [c for c in TURN_COLUMNS if tokens or c not in ("token_ids", "sampler_logprobs")]
    where, values = ("", ()) if step is None else ("WHERE step = ?", (step,))
    query = f"SELECT {', '.join(columns)} FROM turns {where} ORDER BY step, position, member"
    frame = pd.DataFrame([tuple(row) for row in connection.execute(query, values)], columns=columns)
    for name in ("text", "reason", "code", "stdout", "stderr"):
        frame[name] = _objects(frame, [cell_text(cell) for cell in frame[name]])
    frame["components"] = _objects(frame, [load(cell) if cell else {} for cell in frame["components"]])
    if tokens:
        frame["token_ids"] = _objects(frame, [database.cell_ids(c) for c in frame["token_ids"]])
        frame["sampler_logprobs"] = _objects(frame, [database.cell_floats(c) for c in frame["sampler_logprobs"]])
    return frame


def states(connection: sqlite3.Connection) -> pd.DataFrame:
    """One row per state, columns STATE_COLUMNS, in order of the step that first had it."""
    rows = connection.execute(f"SELECT {', '.join(STATE_COLUMNS)} FROM states ORDER BY step, rowid")
    frame = pd.DataFrame([tuple(row) for row in rows], columns=STATE_COLUMNS)
    for name in ("code", "error", "output"):
        frame[name] = _objects(frame, [cell_text(cell) for cell in frame[name]])
    return frame


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


def _objects(frame: pd.DataFrame, values: list[Any]) -> pd.Series:
    # dtype object: pandas' own string type refuses lone surrogates
    return pd.Series(values, index=frame.index, dtype=object)
