"""Which tasks there are: the embedded ones by name, and any folder by path."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Sequence
from pathlib import Path

from workbench.config import ROOT
from workbench.tasks.mle import MleTask, load_task
from workbench.types import WorkbenchError

TASKS_DIR = ROOT / "data" / "tasks"

TRAIN: tuple[str, ...] = (
    "delivery-time",
    "diamonds",
    "flight-carrier",
    "job-time",
    "loan-missing",
    "storm-phase",
)
HELDOUT: tuple[str, ...] = ("churn-lines", "used-cars")
SETS: dict[str, tuple[str, ...]] = {"train": TRAIN, "heldout": HELDOUT, "all": (*TRAIN, *HELDOUT)}


def find_folders(roots: Sequence[Path]) -> dict[str, Path]:
    """Folder name -> task folder, below each root; earlier roots win."""
    found: dict[str, Path] = {}
    for root in roots:
        for config in sorted(Path(root).glob("*/config.yaml")):
            found.setdefault(config.parent.name, config.parent)
    return found


def load_tasks(spec: str, extra_roots: Sequence[Path | str] = ()) -> list[MleTask]:
    """Tasks named by `spec`, a comma-separated list of ids, globs, 'train', 'heldout', 'all', or paths of task folders.

    Order as written, each task once. `extra_roots` are folders of task folders beside the embedded ones.
    Raises WorkbenchError for a name that fits nothing (with the nearest names), or a broken task folder.
    """
    folders = find_folders([*(Path(root) for root in extra_roots), TASKS_DIR])
    chosen: dict[Path, None] = {}
    for part in filter(None, (part.strip() for part in spec.split(","))):
        chosen.update(dict.fromkeys(path.resolve() for path in _folders(part, folders)))
    if not chosen:
        raise WorkbenchError(f"'{spec}' names no task: expected ids, globs, paths, or {', '.join(SETS)}.")
    tasks = [load_task(folder) for folder in chosen]
    ids = [task.id for task in tasks]
    for task in tasks:
        if ids.count(task.id) > 1:
            raise WorkbenchError(
                f"Two task folders have the id '{task.id}': give one of them another id in its config.yaml."
            )
    return tasks


def _folders(part: str, folders: dict[str, Path]) -> list[Path]:
    if part in SETS:
        part_names: Sequence[str] = SETS[part]
    elif part in folders:
        part_names = [part]
    elif Path(part).expanduser().is_dir():
        return [Path(part).expanduser()]
    else:
        part_names = fnmatch.filter(sorted(folders), part)
    missing = [name for name in part_names if name not in folders]
    if missing:
        raise WorkbenchError(
            f"Task '{missing[0]}' is not in '{TASKS_DIR}': build the tasks with `workbench tasks build`."
        )
    if not part_names:
        near = difflib.get_close_matches(part, [*folders, *SETS], n=3, cutoff=0.5) or sorted(folders)
        raise WorkbenchError(
            f"'{part}' is no task, set or folder: did you mean {' or '.join(repr(name) for name in near)}?"
        )
    return [folders[name] for name in part_names]
