"""A run is a folder: `config.json`, `run.sqlite`, `checkpoints/<step>/`, `latest`, `report.html`.

One process writes, any number read meanwhile. A step is one transaction; then its checkpoint is published: written
aside, fsynced, renamed, and named in `latest` last, so what `latest` does not name does not exist. Whatever was
committed survives kill −9. After a power loss the last steps are there too (`commit` waits for the disk); of the
executions stored since the last step some may be missing, and are run again.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd

from workbench import database, frames
from workbench.config import Config
from workbench.database import STEP_TABLES, dump, load
from workbench.folder import (
    Checkpoints,
    Lock,
    check_format,
    read_config,
    refuse_network,
    refuse_taken,
    write_config,
    writing,
)
from workbench.types import Group, State, WorkbenchError

KEPT_CHECKPOINTS = 2


class Run:
    """A run folder. `Run(path)` reads; `Run.create` and `Run.open` write, and are the only writer until `close`.

    Every method may be called from any thread. Readers see what is committed, through a connection of their own.
    Raises WorkbenchError when the folder is no run, a run of another format, damaged, written by another process, or
    cannot be written.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._lock: Lock | None = None
        self._writer: sqlite3.Connection | None = None
        self._mutex = threading.RLock()
        self._checkpoint_mutex = threading.RLock()  # results of executions are stored while a checkpoint is written
        self._checkpoints = Checkpoints(self.path)
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        self._copied: object = None
        self.config, self.environment, self.created = read_config(self.path)
        with self._read() as connection:
            found = connection.execute("PRAGMA user_version").fetchone()[0]
        check_format(self.path, found)

    @classmethod
    def create(cls, path: Path | str, config: Config, environment: Mapping[str, Any]) -> Run:
        """A new run in a folder that does not exist yet or is empty."""
        path = Path(path)
        refuse_taken(path)
        refuse_network(path.absolute())
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = Lock(path)
        except OSError as error:
            raise writing(path, error) from None
        try:
            refuse_taken(path)  # once more, now that no other process can be creating here
            for name in ("run.sqlite", "run.sqlite-wal", "run.sqlite-shm"):
                (path / name).unlink(missing_ok=True)
            (path / "checkpoints").mkdir(exist_ok=True)
            database.create(path / "run.sqlite")
            write_config(path, config, environment, datetime.now().astimezone().isoformat(timespec="seconds"))
        except (OSError, sqlite3.Error) as error:
            lock.release()
            raise writing(path, error) from None
        except WorkbenchError:
            lock.release()
            raise
        return cls._write(path, lock)

    @classmethod
    def open(cls, path: Path | str, *, readonly: bool = False) -> Run:
        """An existing run, to go on writing, or only to read (the same as `Run(path)`)."""
        path = Path(path)
        if readonly:
            return cls(path)
        read_config(path)
        refuse_network(path.absolute())
        try:
            lock = Lock(path)
        except OSError as error:
            raise writing(path, error) from None
        return cls._write(path, lock)

    @classmethod
    def _write(cls, path: Path, lock: Lock) -> Run:
        try:
            run = cls(path)
            run._lock = lock
            run._writer = database.connect(path / "run.sqlite", readonly=False)
            run._writer.execute("BEGIN IMMEDIATE")  # the folder and its WAL can be written, or we say so now
            run._writer.execute("COMMIT")
            run._checkpoints.clean()
        except (OSError, sqlite3.Error) as error:
            lock.release()
            raise writing(path, error) from None
        except BaseException:
            lock.release()
            raise
        return run

    def close(self) -> None:
        """Give the folder free for another writer; reading still works."""
        with self._checkpoint_mutex, self._mutex:
            if self._writer is not None:
                self._writer.close()
                self._writer = None
            if self._lock is not None:
                self._lock.release()
                self._lock = None

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- writing

    def _require_writer(self) -> sqlite3.Connection:
        if self._writer is None:
            raise WorkbenchError(f"'{self.path}' is open for reading only: open it with Run.open(path) to write.")
        return self._writer

    @contextmanager
    def _transaction(self, *, durable: bool) -> Iterator[sqlite3.Connection]:
        with self._mutex:
            writer = self._require_writer()
            try:
                writer.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
                writer.execute("BEGIN IMMEDIATE")
                yield writer
                writer.execute("COMMIT")
            except BaseException as error:
                if writer.in_transaction:
                    with suppress(sqlite3.Error):
                        writer.execute("ROLLBACK")
                if isinstance(error, sqlite3.OperationalError | OSError):
                    raise writing(self.path, error) from None
                raise

    def commit(
        self,
        step: int,
        *,
        groups: Sequence[Group] = (),
        metrics: Mapping[str, float] | None = None,
        curriculum_events: Sequence[Mapping[str, Any]] = (),
        knob_events: Sequence[Mapping[str, Any]] = (),
        states: Sequence[State] = (),
        snapshot: Mapping[str, bytes] | None = None,
    ) -> None:
        """Record one whole step in one transaction, on the disk when this returns; the run is then not at its end.

        Steps come in rising order (ValueError otherwise). Events are JSON-like dicts and come back equal; `states` are
        further states to keep, beside those of the groups; `snapshot` is the curriculum after this step, in parts.
        """
        oldest = min(self._checkpoints.steps(), default=0) if snapshot else 0
        numbers = [(step, name, float(value)) for name, value in (metrics or {}).items()]
        with self._transaction(durable=True) as connection:
            last = connection.execute("SELECT max(step) FROM steps").fetchone()[0]
            if last is not None and step <= last:
                raise ValueError(f"step {step} cannot be recorded after step {last}: truncate({step - 1}) first")
            connection.execute("INSERT INTO steps VALUES (?, ?)", (step, time.time()))
            database.insert(connection, "metrics", numbers)
            database.insert_groups(connection, step, groups)
            database.insert(connection, "states", [database.state_row(step, s) for s in states], again="IGNORE")
            events = [(None, step, dump(dict(event))) for event in curriculum_events]
            database.insert(connection, "curriculum", events)
            if snapshot:
                database.insert_snapshot(connection, step, snapshot, oldest)
            database.insert_knobs(connection, step, knob_events)
            connection.execute("DELETE FROM meta WHERE key = 'summary'")

    def record_knobs(self, step: int, events: Sequence[Mapping[str, Any]]) -> None:
        """Keep requests for knobs that hold from `step` on, though no step is committed with them yet."""
        if events:
            with self._transaction(durable=True) as connection:
                database.insert_knobs(connection, step, events)
                connection.execute("DELETE FROM meta WHERE key = 'summary'")

    def truncate(self, step: int) -> None:
        """Drop what was recorded after `step`, checkpoints and measurements included.

        Stored executions stay, and so do the knobs turned: the steps that are run again turn them again.
        """
        with self._checkpoint_mutex:
            try:
                self._checkpoints.truncate(step)
            except OSError as error:
                raise writing(self.path, error) from None
            with self._transaction(durable=True) as connection:
                for table in STEP_TABLES:
                    connection.execute(f"DELETE FROM {table} WHERE step > ?", (step,))
                measured = connection.execute("SELECT key FROM meta WHERE key LIKE 'drafts after step %'").fetchall()
                gone = [(key,) for (key,) in measured if int(key.rpartition(" ")[2]) > step]
                connection.executemany("DELETE FROM meta WHERE key = ?", [("summary",), *gone])

    def store_result(self, key: str, result: Mapping[str, Any]) -> None:
        """Keep the result of an execution, committed at once; of two results for one key the first stays."""
        row = (key, database.pack(dict(result)))
        with self._transaction(durable=False) as connection:
            database.insert(connection, "executions", [row], again="IGNORE")

    def set_meta(self, key: str, value: Any) -> None:
        """Keep a JSON-like value under a key, replacing the one before."""
        with self._transaction(durable=True) as connection:
            database.insert(connection, "meta", [(key, dump(value))], again="REPLACE")

    def set_environment(self, environment: Mapping[str, Any]) -> None:
        """Replace what config.json says of machine and versions."""
        with self._mutex:
            self._require_writer()
            try:
                write_config(self.path, self.config, environment, self.created)
            except OSError as error:
                raise writing(self.path, error) from None
            self.environment = json.loads(dump(dict(environment)))

    # --- checkpoints

    def save_checkpoint(self, step: int, write: Callable[[Path], None]) -> None:
        """Let `write` fill a new folder, then publish it; the newest 2 checkpoints are kept.

        A failure, or a kill at any moment, leaves the checkpoint before in force.
        """

        def fill(folder: Path) -> None:
            try:
                write(folder)
            except OSError:
                raise
            except Exception as error:  # torch and safetensors say "disk full" in errors of their own
                if shutil.disk_usage(folder).free < 2**20 or "space left" in str(error):  # before it is removed
                    raise OSError(errno.ENOSPC, "No space left on device") from error
                raise

        with self._checkpoint_mutex:
            self._require_writer()
            try:
                self._checkpoints.save(step, fill, KEPT_CHECKPOINTS)
            except OSError as error:
                raise writing(self.path, error) from None

    def latest_checkpoint(self) -> tuple[int, Path] | None:
        """Step and folder of the checkpoint in force; None before the first."""
        return self._checkpoints.find()

    # --- reading

    @contextmanager
    def _read(self) -> Iterator[sqlite3.Connection]:
        connection: sqlite3.Connection | None = None
        try:
            connection = self._connect_reader()
            connection.row_factory = sqlite3.Row
            yield connection
        except sqlite3.DatabaseError as error:
            raise WorkbenchError(
                f"'{self.path / 'run.sqlite'}' cannot be read ({error}): the file is damaged or in use; try again, or "
                "restore it from a copy."
            ) from None
        finally:
            if connection is not None:
                connection.close()

    def _connect_reader(self) -> sqlite3.Connection:
        source = self.path / "run.sqlite"
        connection: sqlite3.Connection | None = None
        try:
            connection = database.connect(source, readonly=True)
            connection.execute("SELECT 1 FROM meta LIMIT 1").fetchone()
            return connection
        except sqlite3.OperationalError:
            if connection is not None:
                connection.close()
            parts = [file for file in (source, source.with_name("run.sqlite-wal")) if file.exists()]
            closed = not all(os.access(path, os.W_OK) for path in (self.path, *parts))
            if not parts or self._writer is not None or not closed:
                raise
            return database.connect(self._private_copy(parts), readonly=False)

    def _private_copy(self, parts: Sequence[Path]) -> Path:
        """WAL needs a writable -shm file: what may only be read is copied, and copied again when it has changed."""
        with self._mutex:
            found = [(file.stat().st_mtime_ns, file.stat().st_size) for file in parts]
            if self._copy is None or found != self._copied:
                if self._copy is not None:
                    self._copy.cleanup()
                self._copy = tempfile.TemporaryDirectory(prefix="workbench-run-")
                for file in parts:
                    shutil.copyfile(file, Path(self._copy.name) / file.name)
                self._copied = found
            return Path(self._copy.name) / "run.sqlite"

    def _rows(self, query: str, *values: Any) -> list[sqlite3.Row]:
        with self._read() as connection:
            return connection.execute(query, values).fetchall()

    def result(self, key: str) -> dict[str, Any] | None:
        """The stored result of an execution."""
        rows = self._rows("SELECT result FROM executions WHERE key = ?", key)
        return database.unpack(rows[0][0]) if rows else None

    def meta(self, key: str) -> Any:
        """The value kept under a key; None when there is none."""
        rows = self._rows("SELECT value FROM meta WHERE key = ?", key)
        return load(rows[0][0]) if rows else None

    def last_step(self) -> int:
        """Number of the last step recorded; 0 before the first."""
        return self._rows("SELECT coalesce(max(step), 0) FROM steps")[0][0]

    def metrics(self, since: int = 0) -> pd.DataFrame:
        """One row per step (from `since` on), columns `step`, `at` (seconds since 1970), then the metrics by name.

        A metric that a step lacks, or that was not a number, is NaN.
        """
        with self._read() as connection:
            return frames.metrics(connection, since)

    def turns(
        self, step: int | None = None, *, tokens: bool = False, columns: Sequence[str] | None = None
    ) -> pd.DataFrame:
        """One row per turn (of one step, or all), in order, with all columns or only `columns`; `components` are dicts.

        With `tokens`, `token_ids` and `sampler_logprobs` (nats) are there as tuples too.
        """
        with self._read() as connection:
            return frames.turns(connection, step, tokens, columns)

    def groups(self, step: int) -> list[Group]:
        """The groups of one step as they were committed (streams and texts longer than 65,536 characters are cut)."""
        with self._read() as connection:
            return frames.groups(connection, step)

    def states(self) -> pd.DataFrame:
        """One row per state: id, step (that first had it), task, kind, code, error, output, score, parent."""
        with self._read() as connection:
            return frames.states(connection)

    def find_states(self, ids: Sequence[str]) -> dict[str, State]:
        """The states with these ids, by id. Raises WorkbenchError when one is not there."""
        with self._read() as connection:
            found = frames.find_states(connection, ids)
        if lost := [state_id for state_id in ids if state_id not in found]:
            raise WorkbenchError(
                f"'{self.path / 'run.sqlite'}' does not hold state {lost[0]}, which its curriculum names: "
                "restore the file from a copy."
            )
        return found

    def curriculum_events(self, since: int = 0) -> Iterator[dict[str, Any]]:
        """The buffer's and sampler's events of the steps from `since` on, in order, equal to those committed; they are
        read one by one, for a long run has many."""
        with self._read() as connection:
            rows = connection.execute("SELECT event FROM curriculum WHERE step >= ? ORDER BY step, seq", (since,))
            yield from (load(row["event"]) for row in rows)

    def curriculum_snapshots(self) -> Iterator[tuple[int, dict[str, bytes]]]:
        """(step, parts) of the snapshots of the curriculum that are kept, the latest first."""
        steps = [row["step"] for row in self._rows("SELECT DISTINCT step FROM snapshots ORDER BY step DESC")]
        for step in steps:
            rows = self._rows("SELECT part, content FROM snapshots WHERE step = ?", step)
            yield step, {row["part"]: row["content"] for row in rows}

    def knob_events(self) -> pd.DataFrame:
        """One row per request for a knob, in order: step, at, knob, old, new, source, outcome, reason."""
        with self._read() as connection:
            return frames.knob_events(connection)
