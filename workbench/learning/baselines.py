"""The best fixed script: one script for all tasks, chosen on the training tasks, run once on those kept out.

Candidates are the scripts of a folder, which read the tables and find out by themselves what is asked for, and the best
of what a training wrote. What a policy adds is what it does better than the best of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from workbench.agent.environment import Environment, Outcome
from workbench.config import ROOT
from workbench.learning.attempts import Progress
from workbench.learning.measures import FINAL, final_values
from workbench.learning.statistics import Table
from workbench.learning.templates import column_names, template
from workbench.run import Run
from workbench.tasks.task import Task, position, report
from workbench.types import Action, StopReason, Verdict, WorkbenchError

FOLDER = ROOT / "data" / "baselines"
"""The scripts that come with the workbench."""

OWN = 8
"""Most scripts of a training that are candidates."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """The script chosen, and what it came to on the tasks kept out."""

    name: str
    code: str
    candidates: tuple[dict[str, Any], ...]
    """Best first: `name`, `position` (mean over the training tasks, rows `reward`), `valid_rate`."""
    values: Mapping[str, Table]
    """Each of `measures.FINAL`, [tasks]."""
    tasks: tuple[dict[str, Any], ...]
    """Per kept-out task: `id`, `report`, each of `FINAL`."""

    def as_dict(self) -> dict[str, Any]:
        """The fields below `baseline`, without the comparison."""
        return {
            "script": self.name,
            "position_train": self.candidates[0]["position"],
            **{name: float(self.values[name].mean()) for name in FINAL},
            "tasks": list(self.tasks),
            "candidates": list(self.candidates),
        }


def read_scripts(folder: Path) -> dict[str, str]:
    """Name → text of the scripts `*.py` in a folder, sorted. The text of `_common.py`, if there is one, goes before
    each.

    Raises WorkbenchError for a folder without scripts, or one that cannot be read.
    """
    common = folder / "_common.py"
    try:
        before = common.read_text(encoding="utf-8") if common.is_file() else ""
        paths = [path for path in sorted(folder.glob("*.py")) if not path.name.startswith("_")]
        scripts = {path.stem: before + path.read_text(encoding="utf-8") for path in paths}
    except (OSError, UnicodeDecodeError):
        raise WorkbenchError(f"The scripts in '{folder}' cannot be read: expected files *.py in UTF-8.") from None
    if not scripts:
        raise WorkbenchError(f"'{folder}' holds no script: expected a folder with files *.py.")
    return scripts


def own_scripts(run: Run, tasks: Mapping[str, Task], limit: int = OWN) -> dict[str, str]:
    """The best valid scripts that a training wrote for `tasks`: the best of each template, at most `limit`."""
    table = run.turns(columns=["step", "position", "member", "task", "code", "score", "reward"])
    table = table[table["score"].notna() & table["reward"].notna() & table["code"].notna() & table["task"].isin(tasks)]
    table = table.sort_values(["reward", "step", "position", "member"], ascending=[False, True, True, True])
    names: dict[str, frozenset[str]] = {}
    found: dict[str, tuple[str, str]] = {}
    for row in table.drop_duplicates("code").itertuples():
        if row.task not in names:
            names[row.task] = column_names(tasks[row.task])
        label = f"step {row.step}, {row.task}, {row.position}/{row.member}"
        found.setdefault(template(row.code, names[row.task]), (label, row.code))
        if len(found) == limit:
            break
    return dict(found.values())


def best_fixed_script(
    scripts: Mapping[str, str],
    environment: Environment,
    train: Sequence[Task],
    held_out: Sequence[Task],
    on_progress: Progress | None = None,
) -> Baseline:
    """Choose the script of highest mean position over the tasks `train` (invalid: 0; ties: the first by name) and
    run it once on each of `held_out`. Nothing of `held_out` takes part in the choice.

    Raises WorkbenchError when a task is on both sides, or a script was lost by the sandbox.
    """
    if shared := sorted({task.id for task in train} & {task.id for task in held_out}):
        raise WorkbenchError(f"'{shared[0]}' is measured and cannot choose the fixed script too: train on other tasks.")
    total = len(scripts) * len(train) + len(held_out)
    waiting = {
        (name, task.id): environment.submit(task.id, _action(scripts[name])) for name in scripts for task in train
    }
    places: dict[str, list[float]] = {name: [] for name in scripts}
    valid: dict[str, list[float]] = {name: [] for name in scripts}
    for done, ((name, task_id), wait) in enumerate(waiting.items(), start=1):
        score = _kept(wait(), name, task_id).feedback.score
        task = environment.tasks[task_id]
        places[name].append(0.0 if score is None else position(task, score, "reward"))
        valid[name].append(float(score is not None))
        if on_progress:
            on_progress(done, total)
    means = {name: fmean(places[name]) for name in scripts}
    order = sorted(scripts, key=lambda name: (-means[name], name))
    candidates = [{"name": name, "position": means[name], "valid_rate": fmean(valid[name])} for name in order]
    name = order[0]
    rows = _run_once(scripts[name], name, environment, held_out)
    if on_progress:
        on_progress(total, total)
    values = {measure: np.array([row[measure] for row in rows]) for measure in FINAL}
    return Baseline(name, scripts[name], tuple(candidates), values, tuple(rows))


def _run_once(code: str, name: str, environment: Environment, tasks: Sequence[Task]) -> list[dict[str, Any]]:
    """Per task, sorted by id: the report of what the script writes, and its measures."""
    ordered = sorted(tasks, key=lambda task: task.id)
    waiting = [environment.submit(task.id, _action(code)) for task in ordered]
    rows = []
    for task, wait in zip(ordered, waiting, strict=True):
        outcome = _kept(wait(), name, task.id)
        graded = report(task, outcome.submission if outcome.feedback.valid else None, None)
        failed = None if outcome.feedback.valid else outcome.feedback.reason
        rows.append({"id": task.id, "report": {**graded, "reason": failed}, **final_values(task, graded)})
    return rows


def _kept(outcome: Outcome, name: str, task_id: str) -> Outcome:
    if outcome.feedback.verdict is Verdict.INFRASTRUCTURE:
        raise WorkbenchError(
            f"The sandbox lost the fixed script '{name}' on task '{task_id}' ({outcome.feedback.reason}): see what "
            "`workbench doctor` says, and measure again."
        )
    return outcome


def _action(code: str) -> Action:
    return Action(f"```python\n{code}\n```", (), (), 0, StopReason.EOS)
