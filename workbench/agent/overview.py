"""What a prompt says of a competition of mle-bench: its files, and the columns of the table to learn from.

A competition may be five gigabytes of CSV, ten thousand images, JSON or zips: nothing large is read whole. Of tables
the first rows are read, of folders the entries counted, up to a bound; of the sample, wherever it lies, the header.
"""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections import Counter
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path

import pandas as pd

from workbench.agent.cards import Card, Column, column_of
from workbench.tasks.mlebench_metrics import LITE, METRICS
from workbench.tasks.task import Task, stamp

HEAD_ROWS = 500
"""Rows of a table that are read."""
COUNTED_BYTES = 50_000_000
"""Lines of smaller tables are counted, of larger ones estimated; larger JSON is not read at all."""
MOST_ENTRIES = 20_000
"""Entries of a folder, with all that is below it, that are counted."""
NAMES = 8
"""Column names of a table that a line shows."""
TABLES = (".csv", ".tsv", ".json", ".jsonl", ".csv.zip", ".tsv.zip")
NO_TARGET = Column("", "float", 0, 0, ())


def bench_card(task: Task) -> Card:
    """Facts of a competition, read once and again when its public folder changes."""
    known = LITE.get(task.id)
    files, table, columns, preview = _overview(task.public_dir, stamp(task.public_dir))
    return Card(
        metric=task.metric_name,
        higher_is_better=task.higher_is_better,
        wants=METRICS[known.metric].wants if known else "",
        id_column=known.id_column if known else "",
        target=NO_TARGET,
        submission=_header(task.sample, stamp(task.sample)),
        train_rows=0,
        test_rows=0,
        columns=columns,
        description=task.description.strip(),
        preview=preview,
        table=table or "the training data",
        files=files,
        competition=True,
    )


@lru_cache(maxsize=256)
def _header(sample: Path, changed: tuple[int, int]) -> tuple[str, ...]:
    return tuple(map(str, pd.read_csv(sample, nrows=0).columns))


@lru_cache(maxsize=256)
def _overview(public: Path, changed: tuple[int, int]) -> tuple[tuple[str, ...], str | None, tuple[Column, ...], str]:
    """(one line per entry, the table to learn from, its columns, its first rows)."""
    lines: list[str] = []
    tables: dict[str, pd.DataFrame] = {}
    for entry in sorted(public.iterdir(), key=lambda path: (_rank(path.name), path.name)):
        if entry.is_dir():
            lines.append(_folder_line(entry))
            continue
        if not entry.exists():
            lines.append(f"{entry.name}: a link to nothing")
            continue
        frame = read_head(entry) if entry.name.lower().endswith(TABLES) else None
        size = entry.stat().st_size
        if frame is None:
            lines.append(f"{entry.name}: {_size(size)}")
        else:
            tables[entry.name] = frame
            shown = ", ".join(map(str, frame.columns[:NAMES]))
            more = f", … {frame.shape[1] - NAMES} more" if frame.shape[1] > NAMES else ""
            lines.append(f"{entry.name}: {_size(size)}, {_rows(entry, frame)}, columns {shown}{more}")
    others = [name for name in tables if not any(word in name.lower() for word in ("test", "sample"))]
    main = next((name for name in others if "train" in name.lower()), next(iter(others), None))
    if main is None:
        return tuple(lines), None, (), ""
    frame = tables[main]
    return tuple(lines), main, tuple(column_of(frame[name]) for name in frame), frame.head(3).to_csv(index=False)


def _rank(name: str) -> int:
    """What there is to learn from stands first, what the description is last: its text is shown elsewhere."""
    words = ("train", "test", "sample")
    place = next((place for place, word in enumerate(words) if word in name.lower()), len(words))
    return 9 if name == "description.md" else place


def read_head(path: Path) -> pd.DataFrame | None:
    """The first rows of a table; None for what is none, or cannot be read without reading all of too large a file."""
    name = path.name.lower()
    try:
        if name.endswith(".json"):
            records = json.loads(path.read_bytes()) if path.stat().st_size <= COUNTED_BYTES else None
            return _frame(records[:HEAD_ROWS]) if isinstance(records, list) else None
        if name.endswith(".jsonl"):
            with path.open(encoding="utf-8") as file:
                return _frame([json.loads(line) for line in islice(file, HEAD_ROWS)])
        separator = "\t" if ".tsv" in name else ","
        if not name.endswith(".zip"):
            return pd.read_csv(path, nrows=HEAD_ROWS, sep=separator)
        with zipfile.ZipFile(path) as archive, archive.open(_only(archive)) as member:
            return pd.read_csv(member, nrows=HEAD_ROWS, sep=separator)
    except (ValueError, OSError, RuntimeError, NotImplementedError, EOFError, zlib.error, zipfile.BadZipFile):
        return None  # damaged ones too


def _only(archive: zipfile.ZipFile) -> str:
    names = [name for name in archive.namelist() if not name.endswith("/") and not name.startswith("__MACOSX")]
    if len(names) != 1:
        raise ValueError(f"{len(names)} members")
    return names[0]


def _frame(records: list[object]) -> pd.DataFrame | None:
    """A table of what nests nothing; lists and objects become text."""
    if not records or not all(isinstance(record, dict) for record in records):
        return None
    frame = pd.DataFrame(records)
    return frame.map(lambda cell: json.dumps(cell) if isinstance(cell, list | dict) else cell)


def _rows(path: Path, frame: pd.DataFrame) -> str:
    if len(frame) < HEAD_ROWS:
        return f"{len(frame)} rows"
    size = path.stat().st_size
    if path.suffix == ".zip":
        return f"more than {HEAD_ROWS} rows"
    if path.suffix == ".json":
        return f"{len(json.loads(path.read_bytes()))} rows"
    with path.open("rb") as file:
        if size <= COUNTED_BYTES:
            lines = sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(2**20), b""))
            return f"some {lines - 1} rows"  # a quoted cell may hold several lines
        head = file.read(2**20)
    estimate = size * head.count(b"\n") / len(head)
    return f"about {round(estimate, -3):,.0f} rows"


def _folder_line(folder: Path) -> str:
    """How many files of which endings, and their size; counted up to a bound."""
    endings: Counter[str] = Counter()
    size = entries = 0
    for place, _, names in os.walk(folder):
        for name in names:
            entries += 1
            if entries > MOST_ENTRIES:
                return f"{folder.name}/: more than {MOST_ENTRIES} files, most of them {_most(endings)}"
            endings[Path(name).suffix or "no ending"] += 1
            with suppress(OSError):  # a link to nothing
                size += os.stat(os.path.join(place, name)).st_size
    return f"{folder.name}/: {entries} files ({_most(endings) or 'empty'}), {_size(size)}"


def _most(endings: Counter[str]) -> str:
    return ", ".join(ending for ending, _ in endings.most_common(3))


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
