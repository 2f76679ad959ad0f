"""An ML-engineering task: a folder with public files, hidden answers, and a frozen board; and how it is graded.

    config.yaml  description.md  leaderboard.csv  public/{train,test,sample_submission}.csv  private/answers.csv

`answers.csv` holds the id, the target columns, and `split`: training reads the rows `reward`, medals the rows `final`.
A submission is judged valid or not on all of its rows, whichever split is scored.
"""

from __future__ import annotations

import csv
import difflib
import hashlib
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from workbench.tasks.leaderboard import Thresholds, better, read_leaderboard, thresholds
from workbench.tasks.metrics import METRICS, Metric
from workbench.tasks.submission import BadSubmission, Form, canonical_id, parse
from workbench.tasks.task import NOTHING, SPLITS, Grade, Split, file_sha
from workbench.types import WorkbenchError

NEEDED = (
    *("id", "metric", "higher_is_better", "id_column", "target_columns", "train_target"),
    *("source", "licence", "seed", "dummy_score"),
)
"""Settings of config.yaml; label metrics need `classes` too."""
OPTIONAL = ("classes", "origin", "thresholds", "expert_lead", "ceiling", "sha256")
"""What else may stand there; `workbench tasks check` proves thresholds, ceiling and hashes where they are stated."""
FILES = (
    "config.yaml",
    "description.md",
    "leaderboard.csv",
    "public/train.csv",
    "public/test.csv",
    "public/sample_submission.csv",
    "private/answers.csv",
)
SIZE_FACTOR = 20
"""A submission may be this many times as large as the sample (and always 1 MB)."""


@dataclass(frozen=True, slots=True)
class MleTask:
    """What the workbench knows of a task. Answers are read when grading and never held here."""

    id: str
    folder: Path
    metric: Metric
    higher_is_better: bool
    id_column: str
    target_columns: tuple[str, ...]
    """Columns of a submission besides the id: the target, or for `logloss` one per class."""
    train_target: str
    """The target's column in train.csv."""
    classes: tuple[str, ...]
    """Labels in the order of their codes (F1: the positive one last; QWK: ascending); empty for numbers."""
    description: str
    source: str
    licence: str
    seed: int
    dummy_score: dict[Split, float]
    """The best score that a constant reaches on the split's rows, knowing them."""
    thresholds: Thresholds
    scores: tuple[float, ...]
    """The board, best first; scored on the rows `final`."""

    @property
    def public_dir(self) -> Path:
        """Folder with train.csv, test.csv and sample_submission.csv: all that an agent's script may read."""
        return self.folder / "public"

    @property
    def sample(self) -> Path:
        return self.public_dir / "sample_submission.csv"

    @property
    def metric_name(self) -> str:
        return self.metric.name

    @property
    def repo(self) -> Path | None:
        """None: all of it lies in its folder."""
        return None

    @property
    def max_bytes(self) -> int:
        """Size of the largest submission that is read."""
        return answers(self).form.max_bytes

    @property
    def grading_s(self) -> float:
        """It is the grader's own limits that are made for these tasks."""
        return 0.0

    @property
    def grading_mb(self) -> int:
        return 0

    def digest(self) -> str:
        """Equal for tasks that show a script the same files and grade what it writes in the same way."""
        grader = (self.metric.name, self.id_column, self.target_columns, self.classes)
        shown = [self.public_dir / f"{name}.csv" for name in ("train", "test", "sample_submission")]
        files = [file_sha(path) for path in (*shown, self.folder / "private" / "answers.csv")]
        return hashlib.sha256(repr((grader, files)).encode("utf-8", "surrogatepass")).hexdigest()

    def grade(self, submission: bytes | None, split: Split) -> Grade:
        """See `grade`: no code but ours is run, so any process will do."""
        return grade(self, submission, split)

    grade_here = grade


def load_task(folder: Path | str) -> MleTask:
    """Read a task folder.

    Raises WorkbenchError when a file or a setting is missing or wrong.
    """
    folder = Path(folder).resolve()
    if not folder.is_dir():
        raise WorkbenchError(f"'{folder}' is no folder: a task is a folder with {', '.join(FILES)}.")
    for name in FILES:
        if not (folder / name).is_file():
            raise WorkbenchError(f"'{folder}' is no task folder: '{name}' is missing; a task has {', '.join(FILES)}.")
    config = read_config(folder)
    metric = METRICS[config["metric"]]
    scores = read_leaderboard(folder / "leaderboard.csv")
    task = MleTask(
        id=str(config["id"]),
        folder=folder,
        metric=metric,
        higher_is_better=config["higher_is_better"],
        id_column=str(config["id_column"]),
        target_columns=tuple(map(str, config["target_columns"])),
        train_target=str(config["train_target"]),
        classes=tuple(map(str, config.get("classes") or ())),
        description=_read_text(folder / "description.md"),
        source=str(config["source"]),
        licence=str(config["licence"]),
        seed=config["seed"],
        dummy_score={split: float(config["dummy_score"][split]) for split in SPLITS},
        thresholds=thresholds(scores),
        scores=scores,
    )
    if not better(task.thresholds.gold, max_dummy(task), task.higher_is_better):
        raise WorkbenchError(
            f"The gold threshold {task.thresholds.gold} of task '{task.id}' is not better than its constant score "
            f"{max_dummy(task)}: mend leaderboard.csv or dummy_score in '{folder / 'config.yaml'}'."
        )
    return task


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise WorkbenchError(f"'{path}' is not UTF-8 text (byte {error.start}): save it as UTF-8.") from None
    except OSError as error:
        raise WorkbenchError(f"'{path}' cannot be read: {error.strerror}.") from None


def max_dummy(task: MleTask) -> float:
    """The better of the two constant scores."""
    return (max if task.higher_is_better else min)(task.dummy_score.values())


def read_config(folder: Path) -> dict[str, Any]:
    """`config.yaml` of a task folder, its settings checked by name and kind.

    Raises WorkbenchError.
    """
    path = folder / "config.yaml"
    try:
        config = yaml.safe_load(_read_text(path))
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # the last two: impossible dates, nested too deep
        raise WorkbenchError(f"'{path}' is no YAML file: {' '.join(str(error).split())}.") from None
    if not isinstance(config, dict):
        raise WorkbenchError(f"'{path}' holds no settings: expected `name: value` lines.")
    if missing := [f"'{name}'" for name in NEEDED if config.get(name) is None]:
        verb = "is" if len(missing) == 1 else "are"
        raise WorkbenchError(
            f"{', '.join(missing)} {verb} missing in '{path}': expected the settings {', '.join(NEEDED)}; "
            "`build_task` of workbench/tasks/build.py writes them all from a table."
        )
    for name in config:
        if name not in (*NEEDED, *OPTIONAL):
            near = difflib.get_close_matches(str(name), (*NEEDED, *OPTIONAL), n=1) or [", ".join((*NEEDED, *OPTIONAL))]
            raise WorkbenchError(f"'{name}' in '{path}' is no setting of a task: did you mean {near[0]}?")
    metric = METRICS.get(str(config["metric"]))
    if metric is None:
        raise WorkbenchError(
            f"metric '{config['metric']}' in '{path}' is unknown: expected one of {', '.join(METRICS)}."
        )
    if config["higher_is_better"] is not metric.higher_is_better:
        raise WorkbenchError(
            f"higher_is_better={config['higher_is_better']} in '{path}' contradicts the metric {metric.name}: "
            f"write {str(metric.higher_is_better).lower()}."
        )
    _check_shapes(config, metric, path)
    return config


def _check_shapes(config: dict[str, Any], metric: Metric, path: Path) -> None:
    columns, classes = config["target_columns"], config.get("classes") or []
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,99}", str(config["id"]), re.ASCII):
        raise WorkbenchError(
            f"id={config['id']!r} in '{path}': expected a name of letters, digits, '.', '_' and '-', at most 100."
        )
    if not isinstance(columns, list) or not columns or (metric.name != "logloss" and len(columns) != 1):
        raise WorkbenchError(
            f"target_columns={columns!r} in '{path}': expected a list of one column (logloss: one per class)."
        )
    if len(set(map(str, columns))) < len(columns) or str(config["id_column"]) in map(str, columns):
        raise WorkbenchError(
            f"target_columns={columns!r} in '{path}': expected names that differ, also from id_column."
        )
    if metric.name == "logloss" and len(columns) < 2:
        raise WorkbenchError(f"target_columns={columns!r} in '{path}': expected one column per class for logloss.")
    if not isinstance(classes, list) or (metric.wants == "label" and len(classes) < 2):
        raise WorkbenchError(f"classes={classes!r} in '{path}': expected a list of the labels in order, two or more.")
    if metric.name == "f1" and len(classes) != 2:
        raise WorkbenchError(f"classes={classes!r} in '{path}': expected two labels for f1, the positive one last.")
    if type(config["seed"]) is not int or config["seed"] < 0:
        raise WorkbenchError(f"seed={config['seed']!r} in '{path}': expected an integer of 0 or more.")
    for name in ("dummy_score", "ceiling"):
        scores: Any = config.get(name)
        if scores is None and name == "ceiling":
            continue
        numbers = isinstance(scores, dict) and all(type(scores.get(split)) in (int, float) for split in SPLITS)
        if not numbers or not all(math.isfinite(scores[split]) for split in SPLITS):
            raise WorkbenchError(f"{name}={scores!r} in '{path}': expected finite numbers for reward and final.")


@dataclass(frozen=True, slots=True)
class Answers:
    """The hidden truth of a task, read once."""

    form: Form
    truth: NDArray[np.float64]
    """[answers, target columns]: numbers, class codes, or one-hot rows."""
    rows: dict[Split, NDArray[np.int64]]


def answers(task: MleTask) -> Answers:
    """The parsed answers of a task, cached until the file changes.

    Raises WorkbenchError when `private/answers.csv` does not fit the task.
    """
    stat = (task.folder / "private" / "answers.csv").stat()
    key = (task.id_column, task.target_columns, task.classes, task.metric.name)
    return _answers(task.folder, key, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=256)
def _answers(folder: Path, key: tuple[str, tuple[str, ...], tuple[str, ...], str], mtime_ns: int, size: int) -> Answers:
    path = folder / "private" / "answers.csv"
    id_column, target_columns, classes, metric_name = key
    records = _records(path, (id_column, *target_columns, "split"))
    rows = {canonical_id(record[id_column]): row for row, record in enumerate(records)}
    sample_bytes = (folder / "public" / "sample_submission.csv").stat().st_size
    if len(rows) < len(records):
        ids = [canonical_id(record[id_column]) for record in records]
        twice = next(name for name in ids if ids.count(name) > 1)
        raise WorkbenchError(f"'{path}' holds the id '{twice}' more than once: write one line per row of test.csv.")
    form = Form(
        id_column, target_columns, classes, METRICS[metric_name], rows, max(1_000_000, SIZE_FACTOR * sample_bytes)
    )
    names = (id_column, *target_columns)
    plain = "\n".join(",".join(_quoted(record[name]) for name in names) for record in records)
    try:
        truth = parse((",".join(map(_quoted, names)) + "\n" + plain).encode(), form)
    except BadSubmission as reason:
        raise WorkbenchError(f"'{path}' does not fit config.yaml: {reason}") from None
    splits: dict[Split, NDArray[np.int64]] = {
        split: np.flatnonzero([record["split"] == split for record in records]) for split in SPLITS
    }
    if sum(map(len, splits.values())) != len(records) or not all(map(len, splits.values())):
        raise WorkbenchError(f"'{path}': column split holds other values than reward and final, or lacks one of them.")
    return Answers(form, truth, splits)


def _records(path: Path, wanted: tuple[str, ...]) -> list[dict[str, str]]:
    """The lines of a CSV file of ours by column name, all of one length."""
    try:
        records = list(csv.DictReader(io.StringIO(_read_text(path), newline=""), restval=None, strict=True))
    except csv.Error as error:
        raise WorkbenchError(f"'{path}' is no CSV file: {error}.") from None
    if not records or not set(wanted) <= set(records[0]):
        names = ", ".join(wanted)
        raise WorkbenchError(f"'{path}' does not fit config.yaml: expected the columns {names} and at least one line.")
    for line, record in enumerate(records, start=2):
        if None in record or None in record.values():
            raise WorkbenchError(f"'{path}' has another number of columns on line {line} than on the first: mend it.")
    return records


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def submission_bytes(task: MleTask, values: NDArray[np.float64], order: Sequence[int] | None = None) -> bytes:
    """`values` [answers, target columns], label codes included, as the CSV that a script would write.

    The lines stand in the order of the answers, or in `order`.
    """
    columns = {task.id_column: list(answers(task).form.rows)}
    for place, name in enumerate(task.target_columns):
        column = values[:, place].tolist()
        columns[name] = [task.classes[int(code)] if task.metric.wants == "label" else repr(code) for code in column]
    lines = list(zip(*columns.values(), strict=True))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(lines if order is None else [lines[place] for place in order])
    return text.getvalue().encode()


def grade(task: MleTask, submission: bytes | None, split: Split) -> Grade:
    """Score a submission on the rows of `split`. Whatever the bytes are: a finite score or a reason.

    Ids may stand in any order and any integer form ("7", "7.0"); columns besides the wanted ones are ignored.
    Raises WorkbenchError for a task that has no finite score for a valid submission.
    """
    if submission is None:
        return Grade(None, NOTHING)
    truth = answers(task)
    try:
        values = parse(submission, truth.form)
    except BadSubmission as reason:
        return Grade(None, str(reason))
    rows = truth.rows[split]
    score = task.metric.score(truth.truth[rows], values[rows])
    if not math.isfinite(score):
        raise WorkbenchError(
            f"The {task.metric.name} of a valid submission is {score} on the rows {split} of '{task.id}': expected a "
            f"finite number, mend the task, `workbench tasks check {task.folder}` says what is wrong."
        )
    return Grade(round(score, 5), None, content=hashlib.sha256(values.tobytes()).hexdigest())
