"""`workbench tasks list` and `workbench tasks check`, both with [PATH|ID|GLOB]…."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.types import WorkbenchError

if TYPE_CHECKING:
    from workbench.tasks.task import Task


def list_tasks(names: Sequence[str]) -> list[dict[str, Any]]:
    """The tasks named, one row each; `dummy` is the best constant's score and `gold` the medal's threshold.

    Of a competition of mle-bench the rows are not counted and no dummy is graded: None.
    """
    from workbench.tasks.catalog import load, task_folders

    folders = dict.fromkeys(folder for name in names for folder in task_folders(name))
    return [_row(load(folder)) for folder in folders]


def _row(task: Task) -> dict[str, Any]:
    from workbench.tasks.catalog import HELDOUT, TRAIN
    from workbench.tasks.mle import MleTask, answers

    ours = task if isinstance(task, MleTask) else None
    return {
        "id": task.id,
        "metric": task.metric_name,
        "direction": "higher" if task.higher_is_better else "lower",
        "train_rows": ours and _rows(ours.public_dir / "train.csv"),
        "test_rows": ours and len(answers(ours).truth),
        "split": "heldout" if task.id in HELDOUT else "train" if task.id in TRAIN else None,
        "dummy": ours and ours.dummy_score["final"],
        "median": task.thresholds.median,
        "gold": task.thresholds.gold,
        "licence": ours.licence if ours else "the competition's rules on Kaggle",
        "source": ours.source if ours else "mle-bench",
    }


def _rows(path: Path) -> int:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return sum(1 for _ in csv.reader(file)) - 1


def show_list(rows: Sequence[dict[str, Any]]) -> None:
    """A table whose cells are never cut, whatever the terminal: it may be read by other programs."""
    names = [name for name in rows[0] if name != "source"]
    cells = [[name.replace("_", " ") for name in names]]
    cells += [
        [f"{row[name]:.5g}" if isinstance(row[name], float) else str(row[name] or "-") for name in names]
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    right = [isinstance(rows[0][name], int | float) for name in names]
    for line in cells:
        padded = [
            text.rjust(width) if number else text.ljust(width)
            for text, width, number in zip(line, widths, right, strict=True)
        ]
        print("  ".join(padded).rstrip())


def check(names: Sequence[str]) -> list[dict[str, Any]]:
    """Every proof of every task named: ids, globs, folders, folders of folders; without a name the embedded ones.

    Raises WorkbenchError for a name that fits nothing. A folder that is no task is a failed proof of its own.
    """
    from workbench.tasks.catalog import load, task_folders
    from workbench.tasks.check import check_task
    from workbench.tasks.mlebench import BenchTask
    from workbench.tasks.mlebench_check import check_bench

    folders = dict.fromkeys(folder for name in names or ["all"] for folder in task_folders(name))
    found = []
    for folder in folders:
        try:
            task = load(folder)
            proofs = check_bench(task) if isinstance(task, BenchTask) else check_task(task)
            found.append({"task": task.id, "folder": folder, "proofs": proofs})
        except WorkbenchError as error:
            found.append({"task": folder.name, "folder": folder, "proofs": {"loads": str(error)}})
    return found


def show_check(results: Sequence[dict[str, Any]]) -> None:
    """One line per task on stdout."""
    width = max(len(result["task"]) for result in results)
    for result in results:
        broken = sum(reason is not None for reason in result["proofs"].values())
        proofs = len(result["proofs"])
        verdict = f"FAILED  {broken} of {proofs} proofs" if broken else f"ok      {proofs} proofs"
        print(f"{result['task']:<{width}}  {verdict}")
    failed = sum(any(result["proofs"].values()) for result in results)
    print(f"{len(results) - failed} of {len(results)} tasks prove themselves.", flush=True)


def tell_failures(results: Sequence[dict[str, Any]]) -> int:
    """One sentence per proof that fails, on stderr; returns the exit status."""
    failures = [
        f"{result['task']}, {name}: {reason}"
        for result in results
        for name, reason in result["proofs"].items()
        if reason is not None
    ]
    for sentence in failures:
        print(sentence, file=sys.stderr)
    return 1 if failures else 0
