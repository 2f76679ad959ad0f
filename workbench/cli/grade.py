"""`workbench grade TASK SUBMISSION.csv`: mle-bench's report of one submission."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from workbench.types import WorkbenchError


def grade(task_name: str, submission: Path) -> dict[str, Any]:
    """mle-bench's report of a submission on the rows `final`, and `reason`. An invalid submission is a result, too.

    Raises WorkbenchError when the name is not one task's, or the file cannot be read.
    """
    from workbench.tasks.catalog import load_tasks
    from workbench.tasks.mle import answers, report

    tasks = load_tasks(task_name)
    if len(tasks) != 1:
        raise WorkbenchError(f"'{task_name}' names {len(tasks)} tasks: expected one, see `workbench tasks list`.")
    wanted = "expected the CSV file of a submission"
    if submission.is_dir():
        raise WorkbenchError(f"'{submission}' is a folder: {wanted}.")
    if not submission.exists():
        raise WorkbenchError(f"'{submission}' does not exist: {wanted}.")
    if submission.suffix.lower() != ".csv":
        raise WorkbenchError(f"'{submission}' is not named *.csv: {wanted}, as mle-bench does.")
    with submission.open("rb") as file:
        data = file.read(answers(tasks[0]).form.max_bytes + 1)  # one more is enough to be refused as too large
    return report(tasks[0], data, submission)


def show_grade(result: dict[str, Any]) -> None:
    """Two lines at most: the score with its medal, and the thresholds; or the reason."""
    if result["reason"]:
        print(f"invalid: {result['reason']}")
        return
    medal = next((name for name in ("gold", "silver", "bronze") if result[f"{name}_medal"]), "no")
    place = "above" if result["above_median"] else "not above"
    direction = "lower" if result["is_lower_better"] else "higher"
    names = ("gold", "silver", "bronze", "median")
    print(f"score {result['score']:g} ({direction} is better): {medal} medal, {place} the median")
    print("thresholds: " + ", ".join(f"{name} {result[f'{name}_threshold']:g}" for name in names))
