"""Strict reading of a submission: bytes in, one number per answer out, or one sentence that says what is wrong.

The bytes come from untrusted code. They are capped before parsing, read as text by column, and converted afterwards;
nothing here raises for a bad file except `BadSubmission`, whose text is the reason.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workbench.tasks.metrics import Metric

MAX_COLUMNS = 1000
MAX_HEADER = 64_000
SUM_TOLERANCE = 1e-3
"""How far the class probabilities of one line may be from summing to 1 (rounding to three or four decimals passes)."""

_INTEGER = re.compile(r"[+]?(-?[0-9]{1,18})(?:\.0*)?", re.ASCII)
_MISSING = frozenset({"", "nan", "na", "n/a", "<na>", "null", "none", "-nan", "#n/a", "nat"})


class BadSubmission(Exception):
    """The reason why a submission is invalid, as one sentence."""


@dataclass(frozen=True, slots=True)
class Form:
    """What a valid submission of a task looks like."""

    id_column: str
    target_columns: tuple[str, ...]
    classes: tuple[str, ...]
    """Label metrics: the accepted labels, whose index is the code; otherwise unused."""
    metric: Metric
    rows: Mapping[str, int]
    """Id as `canonical_id` writes it -> row among the answers."""
    max_bytes: int


def canonical_id(text: str) -> str:
    """An id such that two forms of one integer agree ("7", "7.0", "07"); other text stays, without outer spaces."""
    text = text.strip()
    match = _INTEGER.fullmatch(text)
    return str(int(match[1])) if match else text


def parse(data: bytes, form: Form) -> NDArray[np.float64]:
    """Predictions as [answers, target columns] in the order of the answers; labels become codes of `form.classes`.

    Raises BadSubmission.
    """
    header, lines, numbers = _table(data, form)
    columns = _columns(header, form)
    order = _order([line[columns[0]] for line in lines], numbers, form)
    rows = [
        _values([line[place] for line in lines], numbers, name, form)
        for name, place in zip(form.target_columns, columns[1:], strict=True)
    ]
    values = np.empty((len(order), len(rows)), dtype=np.float64)
    values[order] = np.column_stack(rows)
    if form.metric.name == "logloss":
        _check_sums(values, order, numbers)
    return values


def _table(data: bytes, form: Form) -> tuple[list[str], list[list[str]], list[int]]:
    """Header, lines as long as the header, and their numbers in the file; reading stops at the first line too many."""
    text = _decode(data, form)
    end = text.find("\n")
    if (end if end >= 0 else len(text)) > MAX_HEADER:
        raise BadSubmission(
            f"the first line is longer than {MAX_HEADER} characters: the columns {_wanted(form)} are wanted."
        )
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: list[str] = []
    lines: list[list[str]] = []
    numbers: list[int] = []
    try:
        for line in reader:
            if not line:
                continue
            if not header:
                header = [name.strip() for name in line]
                _check_width(header, form)
            elif len(line) != len(header):
                raise BadSubmission(
                    f"line {reader.line_num} has {len(line)} columns, the first line has {len(header)}."
                )
            elif len(lines) == len(form.rows):
                raise BadSubmission(f"there are more than the {len(form.rows)} rows of test.csv.")
            else:
                lines.append(line)
                numbers.append(reader.line_num)
    except csv.Error as error:
        raise BadSubmission(f"line {reader.line_num} is not CSV, its columns cannot be told apart: {error}.") from None
    if not header:
        raise BadSubmission("the file is empty.")
    return header, lines, numbers


def _decode(data: bytes, form: Form) -> str:
    if len(data) > form.max_bytes:
        raise BadSubmission(
            f"the file is larger than {form.max_bytes} bytes: the columns {_wanted(form)} are wanted and nothing else."
        )
    if not data.strip():
        raise BadSubmission("the file is empty.")
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise BadSubmission("the columns cannot be read: the file is UTF-16, UTF-8 is wanted.")
    if b"\0" in data:
        raise BadSubmission("the columns cannot be read: the file holds NUL bytes, UTF-8 text is wanted.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadSubmission(f"the columns cannot be read: byte {error.start} is not UTF-8 text.") from None


def _wanted(form: Form) -> str:
    names = (form.id_column, *form.target_columns)
    return ", ".join(map(repr, names))


def _check_width(header: Sequence[str], form: Form) -> None:
    if len(header) > MAX_COLUMNS:
        raise BadSubmission(f"the file has {len(header)} columns: {_wanted(form)} are wanted.")


def _columns(header: Sequence[str], form: Form) -> list[int]:
    """Places of the id column and the target columns. Other columns are ignored, as mle-bench's graders do."""
    places = []
    for name in (form.id_column, *form.target_columns):
        found = header.count(name)
        if found == 0:
            raise BadSubmission(
                f"column {name!r} is missing: the columns are {_some(header)}, {_wanted(form)} are wanted."
            )
        if found > 1:
            raise BadSubmission(f"column {name!r} appears {found} times.")
        places.append(header.index(name))
    return places


def _some(names: Sequence[str], limit: int = 8) -> str:
    shown = ", ".join(repr(_short(name)) for name in names[:limit])
    return shown + (f" and {len(names) - limit} more" if len(names) > limit else "")


def _short(text: str, limit: int = 40) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _order(ids: Sequence[str], numbers: Sequence[int], form: Form) -> NDArray[np.int64]:
    """Row among the answers for every line."""
    rows = form.rows
    order = np.empty(len(ids), dtype=np.int64)
    seen: set[int] = set()
    for line, text in enumerate(ids):
        row = rows.get(text)
        if row is None:
            row = rows.get(canonical_id(text))
        if row is None:
            shown = repr(_short(text)) if text.strip() else "a missing value"
            raise BadSubmission(
                f"id column {form.id_column!r} holds {shown} on line {numbers[line]}, which is no id of test.csv."
            )
        if row in seen:
            raise BadSubmission(f"id {_short(text)!r} appears twice, again on line {numbers[line]}.")
        seen.add(row)
        order[line] = row
    if len(order) < len(rows):
        absent = next(name for name, row in rows.items() if row not in seen)
        raise BadSubmission(
            f"{len(rows) - len(order)} of the {len(rows)} ids of test.csv are absent, for example {absent!r}."
        )
    return order


def _values(texts: Sequence[str], numbers: Sequence[int], name: str, form: Form) -> NDArray[np.float64]:
    read = _labels if form.metric.wants == "label" else _numbers
    return read(texts, numbers, name, form)


def _plain(text: str) -> bool:
    """Python reads 1_0 and digits of other scripts as numbers, CSV readers do not."""
    return text.isascii() and "_" not in text


def _numbers(texts: Sequence[str], numbers: Sequence[int], name: str, form: Form) -> NDArray[np.float64]:
    metric = form.metric
    try:
        values = np.array([float(text) for text in texts], dtype=np.float64)
    except ValueError:
        raise _not_numbers(texts, numbers, name, metric) from None
    if not all(map(_plain, texts)):
        raise _not_numbers(texts, numbers, name, metric)
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise _not_finite(texts[bad[0]], name, numbers[bad[0]])
    bad = np.flatnonzero((values < metric.minimum) | (values > metric.maximum))
    if len(bad):
        where = f"column {name!r} holds {_short(texts[bad[0]].strip())} on line {numbers[bad[0]]}"
        if metric.wants == "probability":
            raise BadSubmission(f"{where}: a probability between 0 and 1 is wanted.")
        if values[bad[0]] < 0 <= metric.minimum:
            raise BadSubmission(f"{where}: it must not be negative.")
        raise BadSubmission(f"{where}: the number is too large.")
    return values


def _not_finite(text: str, name: str, number: int) -> BadSubmission:
    if text.strip().lower() in _MISSING:
        return BadSubmission(f"column {name!r} has a missing value on line {number}.")
    return BadSubmission(f"column {name!r} holds {_short(text.strip())} on line {number}, which is not finite.")


def _not_numbers(texts: Sequence[str], numbers: Sequence[int], name: str, metric: Metric) -> BadSubmission:
    for line, text in enumerate(texts):
        if text.strip().lower() in _MISSING:
            return _not_finite(text, name, numbers[line])
        try:
            float(text)
            if _plain(text):
                continue
        except ValueError:
            pass
        wanted = "a probability" if metric.wants == "probability" else "a number"
        return BadSubmission(f"column {name!r} holds {_short(text)!r} on line {numbers[line]}: {wanted} is wanted.")
    raise AssertionError("called without a text that is no number")


def _labels(texts: Sequence[str], numbers: Sequence[int], name: str, form: Form) -> NDArray[np.float64]:
    codes = {label: float(code) for code, label in enumerate(form.classes)}
    values = np.empty(len(texts), dtype=np.float64)
    for line, text in enumerate(texts):
        code = codes.get(text)
        if code is None:
            code = codes.get(canonical_id(text))
        if code is None:
            if text.strip().lower() in _MISSING:
                raise _not_finite(text, name, numbers[line])
            labels = ", ".join(form.classes[:12])
            raise BadSubmission(
                f"column {name!r} holds {_short(text)!r} on line {numbers[line]}: a label is wanted, one of {labels}."
            )
        values[line] = code
    return values


def _check_sums(values: NDArray[np.float64], order: NDArray[np.int64], numbers: Sequence[int]) -> None:
    sums = values.sum(axis=1)
    bad = np.flatnonzero(np.abs(sums - 1) > SUM_TOLERANCE)
    if len(bad):
        line = int(np.flatnonzero(np.isin(order, bad))[0])
        raise BadSubmission(f"the probabilities on line {numbers[line]} sum to {sums[order[line]]:.4g}, expected 1.")
