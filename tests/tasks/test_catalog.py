"""Names of tasks: ids, globs, sets, folders, folders of folders."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from workbench.config import Config
from workbench.tasks.catalog import CORE, CORE_HELDOUT, HELDOUT, SETS, TASKS_DIR, TRAIN, load_tasks, task_folders
from workbench.tasks.metrics import METRICS
from workbench.types import WorkbenchError


def ids(spec: str, **options) -> list[str]:
    return [folder.name for folder in task_folders(spec, **options)]


def test_there_are_twenty_two_of_all_metrics_six_held_out() -> None:
    tasks = {task.id: task for task in load_tasks("all")}
    assert sorted(tasks) == sorted(path.name for path in TASKS_DIR.iterdir() if path.is_dir())
    assert {task.metric.name for task in tasks.values()} == set(METRICS)
    assert (len(TRAIN), len(HELDOUT)) == (16, 6)
    assert not set(TRAIN) & set(HELDOUT)
    assert len({task.source for task in tasks.values()}) == 22
    assert len({task.metric.name for task in tasks.values() if task.id in HELDOUT}) == 6


def test_whose_data_they_are_stands_beside_them() -> None:
    rows = [line for line in (TASKS_DIR / "LICENCES.md").read_text().splitlines() if line.startswith("| ")]
    configs = [yaml.safe_load(path.read_text()) for path in sorted(TASKS_DIR.glob("*/config.yaml"))]
    assert rows[1:] == [f"| {c['id']} | {c['source']} | {c['licence']} | {c['origin']} |" for c in configs]


def test_a_run_trains_on_few_of_them_unless_told_otherwise() -> None:
    assert set(CORE) < set(TRAIN)
    assert set(CORE_HELDOUT) < set(HELDOUT)
    assert ids(Config().tasks) == list(CORE)
    assert ids(Config().eval_tasks) == list(CORE_HELDOUT)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("heldout", HELDOUT),
        ("train", TRAIN),
        ("all", (*TRAIN, *HELDOUT)),
        ("core,core-heldout", (*CORE, *CORE_HELDOUT)),
        ("*-time", ("delivery-time", "job-time")),
        ("diamonds,*mond*, diamonds ,", ("diamonds",)),
        ("used-cars,train", ("used-cars", *TRAIN)),
        ("[u-z]*", ("used-cars",)),
        ("loan-missin?", ("loan-missing",)),
    ],
)
def test_names_are_taken_in_the_order_written_each_once(spec: str, expected: tuple[str, ...]) -> None:
    assert ids(spec) == list(expected)


def test_a_path_is_a_task_or_a_folder_of_tasks(copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert task_folders(f"{copied},diamonds") == [copied, TASKS_DIR / "diamonds"]
    assert [task.id for task in load_tasks(str(copied))] == ["mine"]
    shutil.copytree(copied, tmp_path / ".other.partial")  # a build that was stopped
    assert ids(str(tmp_path)) == ["mine"]
    odd = tmp_path / "with, comma"
    shutil.copytree(copied, odd)
    assert task_folders(str(odd)) == [odd]
    monkeypatch.chdir(copied)
    assert task_folders(".") == [copied]
    assert ids("mine", extra_roots=[tmp_path]) == ["mine"]
    assert ids("mi*,used-cars", extra_roots=[tmp_path]) == ["mine", "used-cars"]


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("", "'' names no task: expected ids, globs, paths, or core, core-heldout, train, heldout, all."),
        (" , ", "' , ' names no task: expected ids"),
        ("diamnds", "'diamnds' is no task, set or folder: did you mean 'diamonds'?"),
        ("heldot", "'heldot' is no task, set or folder: did you mean 'heldout' or 'core-heldout'?"),
        (
            "diamonds,nothing-*",
            "'nothing-*' is no task, set or folder: expected one of 'core', 'core-heldout', 'train', ",
        ),
        ("/no/such/folder", "'/no/such/folder' does not exist: expected the folder of a task"),
        (str(TASKS_DIR / "diamonds" / "config.yaml"), "config.yaml' is a file: a task is a folder with config.yaml, "),
        (str(TASKS_DIR / "diamonds" / "public"), "public' is no task folder: 'config.yaml' is missing; a task has "),
    ],
)
def test_what_fits_nothing_is_one_sentence(spec: str, sentence: str) -> None:
    with pytest.raises(WorkbenchError) as refused:
        load_tasks(spec)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_two_folders_of_one_id_are_refused(copied: Path, tmp_path: Path) -> None:
    shutil.copytree(copied, tmp_path / "again")
    with pytest.raises(WorkbenchError, match="Two task folders have the id 'mine'"):
        load_tasks(str(tmp_path))
    assert len(task_folders(str(tmp_path))) == 2


def test_a_missing_embedded_task_says_how_to_build_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SETS, "heldout", ("gone",))
    with pytest.raises(WorkbenchError, match=r"Task 'gone' is not in .*: build the embedded tasks with `make data`"):
        load_tasks("heldout")
