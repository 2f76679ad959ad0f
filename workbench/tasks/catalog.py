"""Which tasks there are: embedded ones by name, synthetic ones by kind and seed, folders and mle-bench data by path."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Sequence
from pathlib import Path

from workbench.config import ROOT
from workbench.tasks.mle import FILES, MleTask, load_task
from workbench.tasks.mlebench import BenchTask, bench_folders, is_bench, load_bench
from workbench.tasks.task import Task
from workbench.types import WorkbenchError

TASKS_DIR = ROOT / "data" / "tasks"
SYNTHETIC = "synthetic:"
"""What names of synthetic tasks begin with."""

CORE: tuple[str, ...] = (
    "delivery-time",
    "diamonds",
    "flight-carrier",
    "job-time",
    "loan-missing",
    "storm-phase",
)
"""What a run trains on unless told otherwise: tables of a few columns, whose scripts take tenths of a second."""
CORE_HELDOUT: tuple[str, ...] = ("churn-lines", "used-cars")
TRAIN: tuple[str, ...] = (
    *CORE,
    "cancelled-flights",
    "cell-seg",
    "denoise-digits",
    "homes-cat",
    "leaf-shape",
    "meat-spectra",
    "party-scale",
    "photo-patch",
    "station-riders",
    "tweet-valence",
)
HELDOUT: tuple[str, ...] = (*CORE_HELDOUT, "bike-hours", "concrete-strength", "phish-sites", "segment-tiles")
SETS: dict[str, tuple[str, ...]] = {
    "core": CORE,
    "core-heldout": CORE_HELDOUT,
    "train": TRAIN,
    "heldout": HELDOUT,
    "all": (*TRAIN, *HELDOUT),
}


def find_folders(roots: Sequence[Path]) -> dict[str, Path]:
    """Folder name -> task folder, below each root; earlier roots win."""
    found: dict[str, Path] = {}
    for root in roots:
        for config in sorted(Path(root).glob("*/config.yaml")):
            if not config.parent.name.startswith("."):  # a build that was stopped
                found.setdefault(config.parent.name, config.parent)
    return found


def task_folders(spec: str, extra_roots: Sequence[Path | str] = ()) -> list[Path]:
    """Folders named by `spec`: ids, globs, names of SETS, `synthetic:KIND-SEED`, or paths, separated by commas.

    A synthetic task is made when it is first named, which takes some seconds. A path is a task folder, or a folder of
    task folders; what lies there says of which kind they are. Order as written, each folder once; nothing is loaded.
    `extra_roots` are folders of task folders beside the embedded ones.
    Raises WorkbenchError for a name that fits nothing (with the nearest names).
    """
    folders = find_folders([*(Path(root) for root in extra_roots), TASKS_DIR])
    whole = Path(spec).expanduser().is_dir()  # its name may hold commas
    parts = [spec] if spec.strip() and whole else [part.strip() for part in spec.split(",")]
    chosen: dict[Path, None] = {}
    for part in filter(None, parts):
        chosen.update(dict.fromkeys(path.resolve() for path in _folders(part, folders)))
    if not chosen:
        raise WorkbenchError(f"'{spec}' names no task: expected ids, globs, paths, or {', '.join(SETS)}.")
    return list(chosen)


def absolute(spec: str) -> str:
    """`spec` with its paths whole, so that it names the same tasks in whichever folder it is read."""
    if spec.strip() and Path(spec).expanduser().is_dir() and spec not in SETS:
        return str(Path(spec).expanduser().resolve())
    names = find_folders([TASKS_DIR])
    parts = [part.strip() for part in spec.split(",")]
    return ",".join(part if part in SETS or part in names else _whole(part) for part in parts)


def _whole(part: str) -> str:
    path = Path(part).expanduser()
    whole = str(path.resolve()) if part and path.is_dir() else part
    return part if "," in whole else whole  # a comma would part it


def load(folder: Path, repo: Path | str | None = None) -> MleTask | BenchTask:
    """One task, of whichever kind; `repo`: the checkout, where it is one of mle-bench's. Raises WorkbenchError."""
    return load_bench(folder, repo) if is_bench(Path(folder)) else load_task(folder)


def load_tasks(
    spec: str, extra_roots: Sequence[Path | str] = (), *, mlebench_repo: Path | str | None = None
) -> list[Task]:
    """The tasks in the folders that `task_folders` finds.

    `mlebench_repo`: the checkout for tasks of mle-bench; None: as the environment says.
    Raises WorkbenchError also for a broken task folder, and for two folders with one id.
    """
    tasks: list[Task] = [load(folder, mlebench_repo) for folder in task_folders(spec, extra_roots)]
    ids = [task.id for task in tasks]
    for task in tasks:
        if ids.count(task.id) > 1:
            raise WorkbenchError(
                f"Two task folders have the id '{task.id}': give one of them another id in its config.yaml."
            )
    return tasks


def _inside(root: Path) -> list[Path]:
    return [*find_folders([root]).values(), *bench_folders(root)]


def _folders(part: str, folders: dict[str, Path]) -> list[Path]:
    path = Path(part).expanduser()
    if part.startswith(SYNTHETIC):
        from workbench.tasks.generators import synthetic_folder  # building a task needs more than finding one

        return [synthetic_folder(part.removeprefix(SYNTHETIC))]
    if part in SETS:
        part_names: Sequence[str] = SETS[part]
    elif part in folders:
        part_names = [part]
    elif path.is_dir():
        inside = [] if (path / "config.yaml").is_file() or is_bench(path) else _inside(path)
        return inside or [path]
    elif path.is_file():
        raise WorkbenchError(f"'{part}' is a file: a task is a folder with {', '.join(FILES)}.")
    else:
        part_names = fnmatch.filter(sorted(folders), part)
    missing = [name for name in part_names if name not in folders]
    if missing:
        raise WorkbenchError(f"Task '{missing[0]}' is not in '{TASKS_DIR}': build the embedded tasks with `make data`.")
    if not part_names:
        if "/" in part:
            raise WorkbenchError(f"'{part}' does not exist: expected the folder of a task, or one that holds some.")
        near = difflib.get_close_matches(part, [*folders, *SETS], n=3, cutoff=0.5)
        if near:
            remedy = f"did you mean {' or '.join(repr(name) for name in near)}?"
        else:
            remedy = f"expected one of {', '.join(repr(name) for name in (*SETS, *sorted(folders)))}."
        raise WorkbenchError(f"'{part}' is no task, set or folder: {remedy}")
    return [folders[name] for name in part_names]
