"""The embedded tasks prove themselves, and the proofs notice what is wrong."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.tasks.catalog import HELDOUT, TASKS_DIR, TRAIN, load_tasks
from workbench.tasks.check import PROOFS, check_task, submission_bytes
from workbench.tasks.metrics import METRICS
from workbench.tasks.mle import answers, grade, load_task, position, report
from workbench.types import WorkbenchError

ALL = load_tasks("all")


@pytest.mark.parametrize("task", ALL, ids=lambda task: task.id)
def test_a_task_proves_itself(task) -> None:
    assert check_task(task) == dict.fromkeys(PROOFS)


def test_there_are_eight_of_different_metrics_six_to_train_on() -> None:
    assert {task.metric.name for task in ALL} == set(METRICS)
    assert (len(TRAIN), len(HELDOUT)) == (6, 2)
    assert not set(TRAIN) & set(HELDOUT)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    folder = tmp_path / "diamonds"
    shutil.copytree(TASKS_DIR / "diamonds", folder)
    return folder


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_a_changed_file_is_noticed(copy: Path) -> None:
    _edit(copy / "description.md", "stone", "gem")
    assert (
        check_task(load_task(copy))["files"] == "'description.md' is not the file that config.yaml has the sha256 of."
    )


def test_an_impossible_board_is_noticed(copy: Path) -> None:
    task = load_task(copy)
    assert "better than the answers" in (PROOFS["gold is best"](replace(task, scores=(-1.0, *task.scores))) or "")
    low = replace(task.thresholds, median=2.0)
    assert "not worse than the median" in (PROOFS["sample is valid"](replace(task, thresholds=low)) or "")
    assert "threshold is" in (PROOFS["thresholds"](replace(task, thresholds=low)) or "")
    assert "dummy_score says 5.0" in (
        PROOFS["a constant gets the floor"](replace(task, dummy_score={"reward": 5.0, "final": 5.0})) or ""
    )


def test_leaks_are_noticed(copy: Path) -> None:
    train, test = (pd.read_csv(copy / "public" / f"{name}.csv") for name in ("train", "test"))
    leaky = pd.concat([train, test.head(50).assign(price=1, stone=[f"new-{n}" for n in range(50)])])
    leaky.to_csv(copy / "public" / "train.csv", index=False)
    assert "of the test rows stand in train.csv" in (PROOFS["no look-up"](load_task(copy)) or "")
    pd.concat([train, test.head(1).assign(price=1)]).to_csv(copy / "public" / "train.csv", index=False)
    assert "stands in train.csv and in test.csv" in (PROOFS["ids"](load_task(copy)) or "")
    test.assign(price=1).to_csv(copy / "public" / "test.csv", index=False)
    assert PROOFS["no look-up"](load_task(copy)) == "test.csv holds the target column 'price'."


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda f: (f / "private" / "answers.csv").unlink(), "is no task folder: 'private/answers.csv' is missing"),
        (lambda f: _edit(f / "config.yaml", "metric: rmsle", "metric: rmslee"), "metric 'rmslee' in"),
        (lambda f: _edit(f / "config.yaml", "higher_is_better: false", "higher_is_better: true"), "contradicts"),
        (lambda f: _edit(f / "config.yaml", "licence:", "license:"), "'licence' is missing in"),
        (lambda f: (f / "config.yaml").write_text("[1, 2"), "is no YAML file"),
        (lambda f: (f / "config.yaml").write_text("- 1"), "holds no settings"),
    ],
)
def test_a_broken_folder_is_one_sentence(copy: Path, change, sentence: str) -> None:
    change(copy)
    with pytest.raises(WorkbenchError, match="diamonds") as refused:
        load_task(copy)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_answers_that_do_not_fit_are_one_sentence(copy: Path) -> None:
    _edit(copy / "private" / "answers.csv", "stone,price,split", "stone,cost,split")
    with pytest.raises(WorkbenchError, match=r"does not fit config\.yaml"):
        answers(load_task(copy))


def test_tasks_are_found_by_set_glob_and_folder(copy: Path) -> None:
    assert [task.id for task in load_tasks("heldout")] == list(HELDOUT)
    assert [task.id for task in load_tasks("*-l*,diamonds,diamonds")] == ["churn-lines", "diamonds"]
    assert load_tasks(str(copy))[0].folder == copy.resolve()
    for name in ("", " , ", "diamond", "no-such-*"):
        with pytest.raises(WorkbenchError):
            load_tasks(name)
    with pytest.raises(WorkbenchError, match="'diamonds'"):
        load_tasks("diamnds")
    with pytest.raises(WorkbenchError, match="Two task folders have the id 'diamonds'"):
        load_tasks(f"diamonds,{copy}")


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_a_score_depends_on_what_is_said_of_each_id_alone(data) -> None:
    task = data.draw(st.sampled_from(ALL))
    truth = answers(task).truth
    shift = data.draw(st.integers(0, len(truth) - 1))
    order = np.random.default_rng(data.draw(st.integers(0, 99))).permutation(len(truth)).tolist()
    values = np.roll(truth, shift, axis=0)
    plain = grade(task, submission_bytes(task, values), "reward")
    assert plain == grade(task, submission_bytes(task, values, order), "reward")
    assert plain.score is not None
    assert 0 <= position(task, plain.score, "reward") <= 1
    assert (shift == 0) <= (position(task, plain.score, "reward") == 1)


def test_position_is_a_ladder_from_the_constant_to_gold() -> None:
    for task in ALL:
        dummy, gold = task.dummy_score["final"], task.thresholds.gold
        places = [position(task, dummy + share * (gold - dummy), "final") for share in (-1, 0, 0.25, 1, 2)]
        assert places == pytest.approx([0, 0, 0.25, 1, 1])


def test_a_report_has_the_fields_of_mle_bench() -> None:
    task = ALL[0]
    gold = report(task, submission_bytes(task, answers(task).truth), "x.csv")
    assert (gold["gold_medal"], gold["any_medal"], gold["above_median"], gold["valid_submission"]) == (True,) * 4
    missing = report(task, None)
    assert (missing["submission_exists"], missing["valid_submission"], missing["score"]) == (False, False, None)
    assert missing["reason"] == "no submission.csv was written."
    assert set(gold) == set(missing)
