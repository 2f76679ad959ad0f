"""The tables of `run.sqlite`, and how values become cells and come back unchanged.

Every row of a step carries its number, so that `DELETE … WHERE step > n` takes a run back to step n. Text is TEXT, or,
where it holds a NUL or half a surrogate pair, a BLOB of UTF-8 with the surrogates passed through. Token ids are
little-endian uint32, log-probabilities float32. A NaN is NULL.
"""

from __future__ import annotations

import base64
import json
import sqlite3
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from workbench.types import Action, Feedback, Group, Kind, Reward, State, StopReason, Turn, Verdict

FORMAT = 2
"""Format of the run folder; a run of another format is refused."""

TEXT_CAP = 65_536
"""Characters kept of a stream or a completion; scripts and states are kept whole, since a resume reads them back."""

STEP_TABLES = ("steps", "metrics", "states", "groups", "turns", "curriculum", "snapshots")
"""What going back to a step cuts. Knobs stay: the steps that are run again turn them again (`insert_knobs`)."""

SCHEMA = """
CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE steps(step INTEGER PRIMARY KEY, at REAL NOT NULL);
CREATE TABLE metrics(step INTEGER NOT NULL, name TEXT NOT NULL, value REAL, PRIMARY KEY(step, name));
CREATE TABLE states(id TEXT PRIMARY KEY, step INTEGER NOT NULL, task TEXT NOT NULL, kind TEXT NOT NULL,
    code NOT NULL, error NOT NULL, output NOT NULL, score REAL, parent TEXT);
CREATE TABLE groups(step INTEGER NOT NULL, position INTEGER NOT NULL, id TEXT NOT NULL, state TEXT NOT NULL,
    prompt_ids BLOB NOT NULL, PRIMARY KEY(step, position));
CREATE TABLE turns(step INTEGER NOT NULL, position INTEGER NOT NULL, member INTEGER NOT NULL,
    group_id TEXT NOT NULL, trajectory_id TEXT NOT NULL, stage TEXT NOT NULL, state TEXT NOT NULL, task TEXT NOT NULL,
    kind TEXT NOT NULL, text, token_ids BLOB NOT NULL, sampler_logprobs BLOB NOT NULL, policy_version INTEGER NOT NULL,
    stop_reason TEXT NOT NULL, verdict TEXT NOT NULL, failure TEXT, reason, code, stdout, stderr,
    cpu_s REAL, wall_s REAL, score REAL, own_score REAL, submission_sha TEXT, reward REAL, components TEXT,
    PRIMARY KEY(step, position, member));
CREATE TABLE curriculum(seq INTEGER PRIMARY KEY, step INTEGER NOT NULL, event TEXT NOT NULL);
CREATE TABLE snapshots(step INTEGER NOT NULL, part TEXT NOT NULL, content BLOB NOT NULL, PRIMARY KEY(step, part));
CREATE TABLE knobs(seq INTEGER PRIMARY KEY, step INTEGER NOT NULL, event TEXT NOT NULL);
CREATE TABLE executions(key TEXT PRIMARY KEY, result BLOB NOT NULL) WITHOUT ROWID;
CREATE INDEX states_step ON states(step);
CREATE INDEX curriculum_step ON curriculum(step);
CREATE INDEX knobs_step ON knobs(step);
"""

TURN_COLUMNS = (
    "step position member group_id trajectory_id stage state task kind text token_ids sampler_logprobs "
    "policy_version stop_reason verdict failure reason code stdout stderr cpu_s wall_s "
    "score own_score submission_sha reward components"
).split()

STATE_COLUMNS = "id step task kind code error output score parent".split()


def connect(path: Path, *, readonly: bool, busy_s: float = 30.0) -> sqlite3.Connection:
    """A connection in autocommit mode; one that writes uses WAL.

    `synchronous` is NORMAL, where a commit survives the death of the process at any moment; `run.commit` asks for FULL,
    where it survives a power loss too.
    """
    mode = "ro" if readonly else "rw"
    uri = f"{path.resolve().as_uri()}?mode={mode}"
    connection = sqlite3.connect(uri, uri=True, timeout=busy_s, isolation_level=None, check_same_thread=False)
    if not readonly:
        connection.execute("PRAGMA synchronous=NORMAL")
    return connection


def create(path: Path) -> None:
    """A new database with the tables in WAL mode. Raises sqlite3.OperationalError where WAL cannot be had."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        if mode != "wal":
            raise sqlite3.OperationalError(f"the file system gave journal mode {mode}, not WAL")
        connection.executescript(f"BEGIN IMMEDIATE; {SCHEMA} PRAGMA user_version={FORMAT}; COMMIT;")
    finally:
        connection.close()


# --- cells


def text_cell(text: str | None) -> str | bytes | None:
    """TEXT where SQL can hold it, else UTF-8 bytes with lone surrogates passed through."""
    if text is None:
        return None
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text.encode() if "\0" in text else text


def cell_text(cell: str | bytes | None) -> str | None:
    """Inverse of `text_cell`."""
    return cell.decode("utf-8", "surrogatepass") if isinstance(cell, bytes) else cell


def cap(text: str | None, limit: int = TEXT_CAP) -> str | None:
    """Head and tail of a text that is longer than `limit` characters, with a note between them of what was left out."""
    if text is None or len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"


def ids_cell(ids: Sequence[int]) -> bytes:
    return np.asarray(ids, dtype="<u4").tobytes()


def cell_ids(cell: bytes) -> tuple[int, ...]:
    return tuple(np.frombuffer(cell, dtype="<u4").tolist())


def floats_cell(values: Sequence[float]) -> bytes:
    return np.asarray(values, dtype="<f4").tobytes()


def cell_floats(cell: bytes) -> tuple[float, ...]:
    return tuple(np.frombuffer(cell, dtype="<f4").tolist())


def dump(value: Any) -> str:
    """JSON in ASCII; bytes and numpy scalars are taken too."""
    return _ENCODER.encode(value)


def load(text: str) -> Any:
    """Inverse of `dump`."""
    return json.loads(text, object_hook=_decode)


def pack(value: Any) -> bytes:
    """`dump`, compressed: streams of failing programs repeat themselves."""
    return zlib.compress(dump(value).encode(), 1)


def unpack(cell: bytes) -> Any:
    return load(zlib.decompress(cell).decode())


def _encode(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"$bytes": base64.b85encode(value).decode()}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be kept in a run: {value!r}")


_ENCODER = json.JSONEncoder(default=_encode, separators=(",", ":"))
"""Made once: a step has hundreds of events."""


def _decode(value: dict[str, Any]) -> Any:
    return base64.b85decode(value["$bytes"]) if value.keys() == {"$bytes"} else value


# --- rows


def state_row(step: int, state: State) -> tuple[Any, ...]:
    """Cells in the order of STATE_COLUMNS."""
    texts = (text_cell(state.code), text_cell(state.error), text_cell(state.output))
    return (state.id, step, state.task, state.kind.value, *texts, state.score, state.parent)


def row_state(row: sqlite3.Row) -> State:
    code, error, output = (cell_text(row[name]) or "" for name in ("code", "error", "output"))
    return State(row["task"], Kind(row["kind"]), code, error, output, row["score"], row["parent"])


def turn_row(step: int, position: int, member: int, turn: Turn) -> tuple[Any, ...]:
    """Cells in the order of TURN_COLUMNS."""
    action, feedback, reward = turn.action, turn.feedback, turn.reward
    return (
        *(step, position, member, turn.group_id, turn.trajectory_id, turn.stage),
        *(turn.state.id, turn.state.task, turn.state.kind.value, text_cell(cap(action.text))),
        *(ids_cell(action.token_ids), floats_cell(action.sampler_logprobs), action.policy_version),
        *(action.stop_reason.value, feedback.verdict.value, feedback.failure, text_cell(cap(feedback.reason))),
        *(text_cell(feedback.code), text_cell(cap(feedback.stdout)), text_cell(cap(feedback.stderr))),
        *(feedback.cpu_s, feedback.wall_s, feedback.score, feedback.own_score, feedback.submission_sha),
        *((reward.total, dump(dict(reward.components))) if reward else (None, None)),
    )


def row_turn(row: sqlite3.Row, state: State) -> Turn:
    action = Action(
        text=cell_text(row["text"]) or "",
        token_ids=cell_ids(row["token_ids"]),
        sampler_logprobs=cell_floats(row["sampler_logprobs"]),
        policy_version=row["policy_version"],
        stop_reason=StopReason(row["stop_reason"]),
    )
    feedback = Feedback(
        verdict=Verdict(row["verdict"]),
        code=cell_text(row["code"]),
        failure=row["failure"],
        reason=cell_text(row["reason"]),
        stdout=cell_text(row["stdout"]) or "",
        stderr=cell_text(row["stderr"]) or "",
        cpu_s=row["cpu_s"],
        wall_s=row["wall_s"],
        score=row["score"],
        own_score=row["own_score"],
        submission_sha=row["submission_sha"],
    )
    reward = None if row["reward"] is None else Reward(row["reward"], load(row["components"]))
    return Turn(state, action, feedback, reward, row["group_id"], row["trajectory_id"], row["stage"])


def insert(
    connection: sqlite3.Connection, table: str, rows: Sequence[tuple[Any, ...]], *, again: str = "ABORT"
) -> None:
    """Insert rows that have a cell for every column; `again` says what happens on an equal key."""
    if rows:
        marks = ", ".join("?" * len(rows[0]))
        connection.executemany(f"INSERT OR {again} INTO {table} VALUES ({marks})", rows)


def insert_knobs(connection: sqlite3.Connection, step: int, events: Sequence[Mapping[str, Any]]) -> None:
    """Requests for knobs settled at `step`. One that is applied takes the place of what the run, before it went back,
    did with the same knob in later steps."""
    applied = {event["knob"] for event in events if event.get("outcome") == "applied"}
    later = connection.execute("SELECT seq, event FROM knobs WHERE step > ?", (step,)).fetchall()
    gone = [(seq,) for seq, event in later if load(event).get("knob") in applied]
    connection.executemany("DELETE FROM knobs WHERE seq = ?", gone)
    insert(connection, "knobs", [(None, step, dump(dict(event))) for event in events])


def insert_snapshot(connection: sqlite3.Connection, step: int, parts: Mapping[str, bytes], oldest: int) -> None:
    """The curriculum after `step`. What is older goes, but for the latest that a run gone back to `oldest` needs."""
    insert(connection, "snapshots", [(step, part, content) for part, content in parts.items()])
    connection.execute(
        "DELETE FROM snapshots WHERE step < (SELECT max(step) FROM snapshots WHERE step <= ?)", (oldest,)
    )


def insert_groups(connection: sqlite3.Connection, step: int, groups: Sequence[Group]) -> None:
    """States, groups and turns of one step; a state met before keeps its first row."""
    states = [state_row(step, group.state) for group in groups]
    insert(connection, "states", states, again="IGNORE")
    rows = [(step, position, g.id, g.state.id, ids_cell(g.prompt_ids)) for position, g in enumerate(groups)]
    insert(connection, "groups", rows)
    for position, group in enumerate(groups):
        insert(connection, "turns", [turn_row(step, position, n, turn) for n, turn in enumerate(group.turns)])
