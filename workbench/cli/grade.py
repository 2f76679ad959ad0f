"""`workbench grade`: mle-bench's report of one submission, of a file of them, and the mean of such files over seeds."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.folder import write_file
from workbench.types import WorkbenchError

if TYPE_CHECKING:
    from workbench.tasks.task import Task

MEDALS = ("gold", "silver", "bronze")


def grade(task_name: str, submission: Path) -> dict[str, Any]:
    """mle-bench's report of a submission on the rows `final`, and `reason`. An invalid submission is a result, too.

    Raises WorkbenchError when the name is not one task's, or the file cannot be read.
    """
    from workbench.tasks.task import report

    task = _one(task_name)
    wanted = "expected the CSV file of a submission"
    if os.path.isdir(submission):  # unlike those of Path, these take a name that is too long
        raise WorkbenchError(f"'{submission}' is a folder: {wanted}.")
    if not os.path.exists(submission):
        raise WorkbenchError(f"'{submission}' does not exist: {wanted}.")
    if not os.path.isfile(submission):
        raise WorkbenchError(f"'{submission}' is no ordinary file: {wanted}.")
    if submission.suffix.lower() != ".csv":
        raise WorkbenchError(f"'{submission}' is not named *.csv: {wanted}, as mle-bench does.")
    return report(task, _read(task, submission), submission)


def _one(name: str) -> Task:
    from workbench.tasks.catalog import load_tasks

    try:
        tasks = load_tasks(name)
    except OSError as error:
        raise WorkbenchError(
            f"'{name}' cannot be read ({error.strerror}): expected a task, see `workbench tasks list`, or its folder."
        ) from None
    if len(tasks) != 1:
        raise WorkbenchError(f"'{name}' names {len(tasks)} tasks: expected one, see `workbench tasks list`.")
    return tasks[0]


def _read(task: Task, submission: Path) -> bytes:
    try:
        with submission.open("rb") as file:
            return file.read(task.max_bytes + 1)  # one more is enough to be refused as too large
    except OSError as error:
        raise WorkbenchError(
            f"'{submission}' cannot be read ({error.strerror}): expected a CSV file, make it readable."
        ) from None


def grade_many(lines: Path, root: str | None, out: Path | None) -> dict[str, Any]:
    """The report of every line of a file, and their sums; a file that is missing or no .csv is a run without one.

    `root`: the folder below which the competitions are; None: the embedded tasks. Raises WorkbenchError for a file that
    is not as said, and for an unknown task.
    """
    from workbench.tasks.aggregate import summary_report
    from workbench.tasks.task import report

    if out is not None:
        _make_folder(out)  # before what may take long
    tasks: dict[str, Task] = {}
    reports = []
    for name, path in _pairs(lines):
        if name not in tasks:
            tasks[name] = _one(name if root is None else str(Path(root) / name))
        exists = os.path.isfile(path) and path.suffix.lower() == ".csv"
        reports.append(report(tasks[name], _read(tasks[name], path) if exists else None, path))
    summary = summary_report(reports)
    if out is not None:
        _write(out, json.dumps(summary, indent=2))
    return summary


def _make_folder(out: Path) -> None:
    if os.path.isfile(out):
        raise WorkbenchError(f"'{out}' is a file: expected a folder for the report, choose another with --out.")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(out, error) from None


def _unwritable(out: Path, error: OSError) -> WorkbenchError:
    return WorkbenchError(
        f"'{out}' cannot be written ({error.strerror}): expected a folder for the report, choose another with --out."
    )


def _write(out: Path, text: str) -> None:
    """A new report, named by the time, and by a number where there are several of one second."""
    stamp = f"{time.strftime('%Y-%m-%dT%H-%M-%S', time.gmtime())}-GMT"
    for number in itertools.count():
        place = out / f"{stamp}{f'-{number}' if number else ''}_grading_report.json"
        try:
            place.touch(exist_ok=False)  # so that nobody else takes this name
        except FileExistsError:
            continue
        except OSError as error:
            raise _unwritable(out, error) from None
        try:
            write_file(place, text)
        except OSError as error:
            place.unlink(missing_ok=True)
            raise _unwritable(out, error) from None
        return


def _pairs(lines: Path) -> list[tuple[str, Path]]:
    pairs = []
    for number, line in enumerate(_text(lines).split("\n"), start=1):
        if not line.strip() or line.strip().startswith(("#", "//")):
            continue
        try:
            found = json.loads(line)
            pairs.append((str(found["competition_id"]), Path(str(found["submission_path"]))))
        except (ValueError, KeyError, TypeError, RecursionError):
            raise WorkbenchError(
                f"Line {number} of '{lines}' is not as wanted: expected "
                '{"competition_id": "…", "submission_path": "….csv"}.'
            ) from None
    return pairs


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise WorkbenchError(f"'{path}' cannot be read: expected a text file.") from None


def aggregate(paths: Sequence[Path], split: Path | None, pad_missing: bool) -> dict[str, Any]:
    """Means over seeds, one file of reports after the other in the order of their names.

    `split`: a file of competition ids; None: all that are reported. Raises WorkbenchError.
    """
    from workbench.tasks.aggregate import average_seeds

    real = [os.path.realpath(path) for path in paths]
    if twice := [path for place, path in enumerate(paths) if real[place] in real[:place]]:
        raise WorkbenchError(f"'{twice[0]}' is given twice and would count as two seeds: leave one of them out.")
    reports = [report for path in sorted(paths, key=str) for report in _reports(path)]
    seen = dict.fromkeys(str(report["competition_id"]) for report in reports)
    ids = list(seen) if split is None else [line.strip() for line in _text(split).splitlines() if line.strip()]
    if doubled := [name for place, name in enumerate(ids) if name in ids[:place]]:
        raise WorkbenchError(f"'{split}' names '{doubled[0]}' twice: leave one of them out.")
    return average_seeds(reports, ids, pad_missing=pad_missing)


def _reports(path: Path) -> list[dict[str, Any]]:
    flags = (*(f"{name}_medal" for name in MEDALS), "above_median", "submission_exists", "valid_submission")
    try:
        reports: list[dict[str, Any]] = json.loads(_text(path))["competition_reports"]
        for report in reports:
            name = report["competition_id"]
            odd = [flag for flag in flags if not isinstance(report[flag], bool)]
            if odd:
                raise WorkbenchError(
                    f"'{path}' says {odd[0]}={report[odd[0]]!r} of '{name}': expected true or false, grade it again."
                )
    except (ValueError, KeyError, TypeError, RecursionError):
        raise WorkbenchError(
            f"'{path}' is no report: expected what `workbench grade --jsonl` or mle-bench writes."
        ) from None
    return reports


def show_grade(result: dict[str, Any]) -> None:
    """The score with its medal, and the thresholds; or the reason. Where a grader should have been used, why not."""
    if result["reason"]:
        print(f"invalid: {result['reason']}")
    else:
        medal = next((name for name in MEDALS if result[f"{name}_medal"]), "no")
        place = "above" if result["above_median"] else "not above"
        direction = "lower" if result["is_lower_better"] else "higher"
        print(f"score {result['score']:g} ({direction} is better): {medal} medal, {place} the median")
        print("thresholds: " + ", ".join(f"{name} {result[f'{name}_threshold']:g}" for name in (*MEDALS, "median")))
    if result["grader_note"]:
        print(f"graded by the workbench: {result['grader_note']}")


def show_many(result: dict[str, Any]) -> None:
    """The sums, one per line."""
    for name, value in result.items():
        if name != "competition_reports":
            print(f"{name.replace('_', ' ')}: {value}")


def show_aggregate(result: dict[str, Any]) -> None:
    """Mean and standard error of each percentage."""
    print(f"{result['num_seeds_averaged']} seeds of {result['num_competitions_per_seed']} competitions")
    for name, value in result["metrics"].items():
        if name.endswith("_percentage"):
            print(
                f"{name.removesuffix('_percentage').replace('_', ' ')}: "
                f"{value['mean']:.2f} ± {value['standard_error']:.2f} %"
            )
