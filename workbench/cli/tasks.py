"""`workbench tasks list`, `workbench tasks check [PATH]…` and `workbench grade TASK SUBMISSION.csv`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workbench.types import WorkbenchError


def list_tasks() -> list[dict[str, Any]]:
    """The embedded tasks, one row each."""
    from workbench.tasks.catalog import HELDOUT, load_tasks
    from workbench.tasks.mle import answers

    return [
        {
            "id": task.id,
            "split": "heldout" if task.id in HELDOUT else "train",
            "metric": task.metric.name,
            "direction": "higher" if task.higher_is_better else "lower",
            "test_rows": len(answers(task).truth),
            "dummy": task.dummy_score["final"],
            "median": task.thresholds.median,
            "gold": task.thresholds.gold,
            "licence": task.licence,
        }
        for task in load_tasks("all")
    ]


def show_list(rows: Sequence[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    shown = [name for name in rows[0] if name != "licence"]
    table = Table(box=None, pad_edge=False)
    for name in shown:
        table.add_column(name.replace("_", " "), no_wrap=name == "id")
    for row in rows:
        table.add_row(*(f"{row[name]:.5g}" if isinstance(row[name], float) else str(row[name]) for name in shown))
    Console().print(table)


def check(names: Sequence[str]) -> list[dict[str, Any]]:
    """Every proof of every task named: ids, globs or folders; without a name the embedded ones.

    Raises WorkbenchError for a name that fits nothing. A folder that is no task is a failed proof of its own.
    """
    from workbench.tasks.catalog import load_tasks
    from workbench.tasks.check import check_task

    found = []
    for name in names or ["all"]:
        try:
            tasks = load_tasks(name)
            found += [{"task": task.id, "proofs": check_task(task)} for task in tasks]
        except WorkbenchError as error:
            if not Path(name).is_dir():
                raise
            found.append({"task": name, "proofs": {"loads": str(error)}})
    return found


def show_check(results: Sequence[dict[str, Any]]) -> int:
    """One line per task, one more per proof that fails; returns the exit status."""
    failed = 0
    for result in results:
        broken = {name: reason for name, reason in result["proofs"].items() if reason}
        failed += bool(broken)
        print(f"{result['task']:<18} {'FAILED' if broken else 'ok':<7} {len(result['proofs'])} proofs")
        for name, reason in broken.items():
            print(f"  {name}: {reason}")
    print(f"{len(results) - failed} of {len(results)} tasks prove themselves.")
    return 1 if failed else 0


def grade(task_name: str, submission: Path) -> dict[str, Any]:
    """mle-bench's report of a submission on the rows `final`, and `reason`. An invalid submission is a result, too.

    Raises WorkbenchError when the name is not one task's, or the file cannot be read.
    """
    from workbench.tasks.catalog import load_tasks
    from workbench.tasks.mle import report

    tasks = load_tasks(task_name)
    if len(tasks) != 1:
        raise WorkbenchError(f"'{task_name}' names {len(tasks)} tasks: expected one, see `workbench tasks list`.")
    if submission.is_dir():
        raise WorkbenchError(f"'{submission}' is a folder: expected the CSV file of a submission.")
    try:
        data = submission.read_bytes()
    except FileNotFoundError:
        raise WorkbenchError(f"'{submission}' does not exist: expected the CSV file of a submission.") from None
    return report(tasks[0], data, submission)


def show_grade(result: dict[str, Any]) -> None:
    if result["reason"]:
        print(f"invalid: {result['reason']}")
        return
    medal = next((name for name in ("gold", "silver", "bronze") if result[f"{name}_medal"]), "no")
    place = "above" if result["above_median"] else "not above"
    print(f"score {result['score']:g}: {medal} medal, {place} the median {result['median_threshold']:g}")
