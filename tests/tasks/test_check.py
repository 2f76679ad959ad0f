"""The embedded tasks prove themselves, and every proof notices what it is there for."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from workbench.tasks.catalog import TASKS_DIR, load_tasks
from workbench.tasks.check import PROOFS, check_task
from workbench.tasks.mle import MleTask, answers, load_task
from workbench.types import WorkbenchError

Change = Callable[[Path], object]


@pytest.mark.parametrize("task", load_tasks("all"), ids=lambda task: task.id)
def test_an_embedded_task_proves_itself(task: MleTask) -> None:
    assert check_task(task) == dict.fromkeys(PROOFS)


def edit(name: str, old: str, new: str) -> Change:
    """Replace the first occurrence in a file."""

    def change(folder: Path) -> None:
        text = (folder / name).read_text(encoding="utf-8")
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1), encoding="utf-8")

    return change


def frame(name: str, change: Callable[[pd.DataFrame], pd.DataFrame]) -> Change:
    """Rewrite a table."""
    return lambda folder: change(pd.read_csv(folder / name)).to_csv(folder / name, index=False)


def unhashed(folder: Path) -> None:
    """A task made by hand states no hashes."""
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(text[: text.index("sha256:")])


CONFIG, TRAIN, TEST = "config.yaml", "public/train.csv", "public/test.csv"
SAMPLE, ANSWERS, BOARD = "public/sample_submission.csv", "private/answers.csv", "leaderboard.csv"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda f: (f / ANSWERS).unlink(),
            "is no task folder: 'private/answers.csv' is missing; a task has config.yaml,",
        ),
        (edit(CONFIG, "metric: f1", "metric: f1x"), "metric 'f1x' in "),
        (edit(CONFIG, "higher_is_better: true", "higher_is_better: false"), "contradicts the metric f1: write true."),
        (edit(CONFIG, "licence:", "license:"), "'licence' is missing in "),
        (edit(CONFIG, "id: mine\n", ""), "'id' is missing in "),
        (edit(CONFIG, "id: mine\n", "id: ../../x\n"), "id='../../x' in "),
        (edit(CONFIG, "id: mine\n", 'id: ""\n'), "id='' in "),
        (edit(CONFIG, "id: mine\n", 'id: "a\\nb"\n'), "expected a name of letters, digits"),
        (edit(CONFIG, "seed: 5", "seed: 2024-13-45"), "is no YAML file: month must be in 1..12"),
        (lambda f: (f / CONFIG).write_text("a: " + "[" * 3000), "is no YAML file"),
        (edit(CONFIG, "id_column: row", "id_column:"), "'id_column' is missing in "),
        (edit(CONFIG, "origin:", "orign:"), "'orign' in "),
        (edit(CONFIG, "seed: 5", "seed: five"), "seed='five' in "),
        (edit(CONFIG, "- 'no'", "- maybe\n- 'no'"), "expected two labels for f1, the positive one last."),
        (edit(CONFIG, "- y\n", "- row\n"), "expected names that differ, also from id_column."),
        (edit(CONFIG, "- y\n", "- y\n- z\n"), "expected a list of one column (logloss: one per class)."),
        (edit(CONFIG, "  final: ", "  final: no #"), "expected finite numbers for reward and final."),
        (lambda f: (f / CONFIG).write_text("[1, 2"), "is no YAML file"),
        (lambda f: (f / CONFIG).write_text("- 1"), "holds no settings: expected `name: value` lines."),
        (lambda f: (f / CONFIG).write_bytes(b"\xff\xfe"), "is not UTF-8 text (byte 0): save it as UTF-8."),
        (lambda f: (f / "description.md").write_bytes(b"caf\xe9"), "is not UTF-8 text (byte 3): save it as UTF-8."),
        (lambda f: (f / BOARD).write_text("rank,score\n1,0.1\n"), "is not better than its constant score"),
        (lambda f: (f / BOARD).write_text("rank,points\n1,0.1\n"), "is no leaderboard: expected a column 'score'"),
    ],
)
def test_a_broken_folder_is_one_sentence_with_its_path(copied: Path, change: Change, sentence: str) -> None:
    change(copied)
    with pytest.raises(WorkbenchError) as refused:
        load_task(copied)
    assert sentence in str(refused.value)
    assert str(copied) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_classes_of_a_number_task_must_be_a_list_too(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(TASKS_DIR / "used-cars", tmp_path / "cars"))
    edit(CONFIG, "classes: []", "classes: 5")(folder)
    with pytest.raises(WorkbenchError, match=r"classes=5 in .*: expected a list of the labels"):
        load_task(folder)


def test_a_folder_that_is_none_is_told(tmp_path: Path) -> None:
    with pytest.raises(WorkbenchError, match=r"nowhere' is no folder: a task is a folder with config\.yaml, "):
        load_task(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("change", "proof", "sentence"),
    [
        (
            edit(ANSWERS, "row,y,split", "row,z,split"),
            "answers",
            "does not fit config.yaml: expected the columns row, y, ",
        ),
        (edit(ANSWERS, ",final", ",last"), "answers", "column split holds other values than reward and final"),
        (edit(ANSWERS, "\n", "\n1,yes\n"), "answers", "has another number of columns on line 2 than on the first"),
        (
            edit(ANSWERS, "\n", "\n1,sure,final\n"),
            "answers",
            "does not fit config.yaml: column 'y' holds 'sure' on line 2",
        ),
        (lambda f: (f / ANSWERS).write_bytes(b"\xff"), "answers", "is not UTF-8 text (byte 0)"),
        (
            frame(ANSWERS, lambda t: pd.concat([t, t.head(1)])),
            "answers",
            "more than once: write one line per row of test",
        ),
        (
            edit(TRAIN, "row,", "number,"),
            "columns",
            "column 'row' is missing in train.csv: its columns are number, u, v, ",
        ),
        (
            edit(TRAIN, ",y\n", ",z\n"),
            "columns",
            "column 'y' is missing in train.csv: its columns are row, u, v, word, z.",
        ),
        (
            edit(TEST, "row,", "Row,"),
            "columns",
            "column 'row' is missing in test.csv: its columns are Row, u, v, word.",
        ),
        (
            edit(SAMPLE, "row,y", "row,yy"),
            "columns",
            "column 'y' is missing in sample_submission.csv: its columns are row,",
        ),
        (frame(TEST, lambda t: pd.concat([t, t.head(1)])), "columns", " 2 times: every row needs an id of its own."),
        (frame(TEST, lambda t: t.head(0)), "columns", "test.csv has no rows: every row needs an id of its own."),
        (edit(TEST, "\n", "\n,0,0,red\n"), "columns", "test.csv has a row without an id"),
        (
            frame(TEST, lambda t: t.drop(columns="u")),
            "columns",
            "column 'u' stands in one of train.csv and test.csv only",
        ),
        (
            frame(TRAIN, lambda t: t.replace("yes", "sure")),
            "columns",
            "'y' of train.csv holds a value that is no label",
        ),
        (
            lambda f: shutil.copy(f / "private" / "answers.csv", f / "public" / "notes.csv"),
            "nothing else is shown",
            "public/ holds 'notes.csv', which every script can read: expected sample_submission.csv, test.csv,",
        ),
        (lambda f: (f / TRAIN).write_text(""), "columns", "is no CSV file: No columns to parse from file."),
        (
            edit("description.md", "what is wanted", "wanted"),
            "files",
            "'description.md' is not the file that config.yaml",
        ),
        (edit(CONFIG, "  description.md:", "  ../x.md:"), "files", "'../x.md' is named in config.yaml and missing."),
        (edit(CONFIG, "  reward: ", "  reward: 0.1 #"), "a constant gets the floor", "and dummy_score says 0.1."),
        (edit(CONFIG, "  silver: ", "  silver: 1 #"), "thresholds", "the silver threshold is 1 in config.yaml and 0.8"),
        (edit(BOARD, "\n10,", "\n10,0.99,"), "thresholds", "leaderboard.csv is not in rank order: "),
        (
            frame(SAMPLE, lambda t: t.assign(y="maybe")),
            "sample is valid",
            "is invalid: column 'y' holds 'maybe' on line 2",
        ),
        (
            frame(SAMPLE, lambda t: t.iloc[1:]),
            "ids",
            "sample_submission.csv and answers.csv differ in 1 ids, for example '",
        ),
        (
            frame(TEST, lambda t: t.assign(row=t["row"] + 1000000)),
            "ids",
            "test.csv and answers.csv differ in 300 ids, for ex",
        ),
        (
            frame(ANSWERS, lambda t: t.assign(split=["reward", "final"] * 75)),
            "split",
            "50% of the private rows are reward, ",
        ),
        (edit(CONFIG, "licence: CC0-1.0", "licence: ' '"), "stated", "config.yaml states no licence."),
        (
            edit("description.md", "metric is f1", "score is best"),
            "stated",
            "description.md does not name the metric f1.",
        ),
        (edit("description.md", "higher is", "lower is"), "stated", "description.md does not say 'higher is better'."),
    ],
)
def test_every_proof_notices(copied: Path, change: Change, proof: str, sentence: str) -> None:
    change(copied)
    found = check_task(load_task(copied))
    assert sentence in (found[proof] or "")
    assert "\n" not in (found[proof] or "")
    odd = {name for name, reason in found.items() if reason} - {"files", proof}
    assert odd <= {"a constant gets the floor"}, found  # other rows, another floor


def test_a_task_by_hand_needs_no_hashes_and_no_thresholds(copied: Path) -> None:
    unhashed(copied)
    edit("description.md", "what is wanted", "wanted")(copied)
    text = (copied / CONFIG).read_text()
    (copied / CONFIG).write_text(text[: text.index("thresholds:")])
    assert check_task(load_task(copied)) == dict.fromkeys(PROOFS)


def test_a_proof_that_rests_on_another_is_not_tried(copied: Path) -> None:
    edit(TRAIN, "row,", "number,")(copied)
    assert list(check_task(load_task(copied))) == ["answers", "columns"]


def test_an_impossible_board_is_noticed(mine: MleTask) -> None:
    better = replace(mine, scores=(1.5, *mine.scores))
    assert PROOFS["gold is best"](better) == "1 entries of leaderboard.csv are better than the answers."
    high = replace(mine, thresholds=replace(mine.thresholds, gold=1.5, silver=1.25))
    assert PROOFS["gold is best"](high) == "the answers win no gold medal."
    low = replace(mine, thresholds=replace(mine.thresholds, median=0.0))
    assert "not worse than the median 0.0" in (PROOFS["sample is valid"](low) or "")


def told(folder: Path) -> str:
    return PROOFS["no look-up"](load_task(folder)) or ""


def truth(folder: Path) -> list[str]:
    with (folder / ANSWERS).open(newline="") as file:
        return [line["y"] for line in csv.DictReader(file)]


def test_rows_of_test_that_stand_in_train_are_noticed(copied: Path) -> None:
    train, test = pd.read_csv(copied / TRAIN), pd.read_csv(copied / TEST)
    for twins, noticed in ((1, False), (15, True)):
        new = test.head(twins).assign(y=truth(copied)[:twins], row=range(twins))
        pd.concat([train, new]).to_csv(copied / TRAIN, index=False)
        assert ("10.0% of the test rows stand in train.csv" in told(copied)) is noticed


def test_a_target_column_in_test_is_noticed(copied: Path) -> None:
    frame(TEST, lambda t: t.assign(y="yes"))(copied)
    assert told(copied) == "test.csv holds the target column 'y'."


def test_a_column_that_names_the_answer_is_noticed(copied: Path) -> None:
    code = {"yes": "17", "no": "4"}
    frame(TRAIN, lambda t: t.assign(word=t["y"].map(code)))(copied)
    frame(TEST, lambda t: t.assign(word=[code[answer] for answer in truth(copied)]))(copied)
    assert told(copied) == "column 'word' alone gives the target away: its look-up table scores 1.0, a gold medal."


def test_ids_and_row_order_that_follow_the_target_are_noticed(copied: Path) -> None:
    plain = (copied / TRAIN).read_bytes(), (copied / TEST).read_bytes(), (copied / ANSWERS).read_bytes()
    for name, table in (
        (TRAIN, pd.read_csv(copied / TRAIN)),
        (TEST, pd.read_csv(copied / TEST).assign(y=truth(copied))),
    ):
        table["row"] = np.where(table["y"] == "yes", 7000, 2000) + 2 * np.arange(len(table)) + (name == TEST)
        table.drop(columns="y" if name == TEST else []).to_csv(copied / name, index=False)
        if name == TEST:
            kept = pd.read_csv(copied / ANSWERS).assign(row=table["row"])
            kept.to_csv(copied / ANSWERS, index=False)
    assert told(copied).startswith("the number in the id gives the target away: the nearest train rows by it score ")
    for name, content in zip((TRAIN, TEST, ANSWERS), plain, strict=True):
        (copied / name).write_bytes(content)
    frame(TRAIN, lambda t: t.sort_values("y"))(copied)
    frame(TEST, lambda t: t.assign(y=truth(copied)).sort_values("y").drop(columns="y"))(copied)
    assert told(copied).startswith("the order of the rows gives the target away: the nearest train rows by it score ")


def test_a_number_that_is_the_target_in_other_units_is_noticed(table, blueprint, tmp_path: Path) -> None:
    from workbench.tasks.build import build_task

    leaky = table("rmse")
    leaky["v"] = np.exp(leaky["y"] / 3)
    task = build_task(blueprint("rmse"), leaky, tmp_path / "mine", entries=10)
    assert PROOFS["no look-up"](task) == "column 'v' is the target in other units: leave it out."


def test_answers_are_read_anew_when_the_file_changes(copied: Path) -> None:
    task = load_task(copied)
    before = answers(task).truth.sum()
    unhashed(copied)
    frame(ANSWERS, lambda t: t.assign(y=t["y"].map({"yes": "no", "no": "yes"})))(copied)
    assert answers(task).truth.sum() == 150 - before
