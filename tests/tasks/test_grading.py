"""From bytes to a score, a position, a reward and mle-bench's report."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import datetime

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.learning.rewards import VALID, score
from workbench.tasks.catalog import load_tasks
from workbench.tasks.leaderboard import Thresholds, better
from workbench.tasks.mle import MleTask, answers, grade, submission_bytes
from workbench.tasks.task import SPLITS, position, report
from workbench.types import Feedback, Kind, State, Verdict

ALL = load_tasks("all")
EACH = pytest.mark.parametrize("task", ALL, ids=lambda task: task.id)


def reward(task: MleTask, value: float) -> float:
    """What training pays for a valid submission of this hidden score."""
    feedback = Feedback(verdict=Verdict.OK, code="x = 1", score=value)
    paid = score(State(task.id, Kind.DRAFT), feedback, position=position(task, value, "reward"), copied=False)
    assert paid is not None
    return paid.total


@EACH
def test_a_constant_is_paid_the_floor_and_the_answers_everything(task: MleTask) -> None:
    truth = answers(task).truth
    sample = grade(task, (task.public_dir / "sample_submission.csv").read_bytes(), "reward")
    assert sample.score is not None
    assert reward(task, sample.score) == VALID == 0.2
    assert reward(task, task.dummy_score["reward"]) == 0.2
    perfect = grade(task, submission_bytes(task, truth), "reward").score
    assert perfect == pytest.approx(task.metric.perfect, abs=1e-5)
    assert reward(task, perfect) == 1.0
    assert reward(task, task.thresholds.gold) == 1.0


@given(st.sampled_from(ALL), st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_the_reward_never_falls_when_the_score_gets_better(task: MleTask, one: float, other: float) -> None:
    low, high = (one, other) if better(other, one, task.higher_is_better) else (other, one)
    assert 0.2 <= reward(task, low) <= reward(task, high) <= 1.0


@EACH
def test_position_is_a_ladder_from_the_constant_to_gold(task: MleTask) -> None:
    for split in SPLITS:
        dummy, gold = task.dummy_score[split], task.thresholds.gold
        places = [position(task, dummy + share * (gold - dummy), split) for share in (-1, 0, 0.25, 1, 2)]
        assert places == pytest.approx([0, 0, 0.25, 1, 1])


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_a_score_depends_on_what_is_said_of_each_id_alone(data: st.DataObject) -> None:
    task = data.draw(st.sampled_from(ALL))
    truth = answers(task).truth
    shift = data.draw(st.integers(0, len(truth) - 1))
    order = np.random.default_rng(data.draw(st.integers(0, 99))).permutation(len(truth)).tolist()
    values = np.roll(truth, shift, axis=0)
    plain = grade(task, submission_bytes(task, values), "reward")
    assert plain == grade(task, submission_bytes(task, values, order), "reward")
    assert plain.score is not None
    assert (shift == 0) <= (position(task, plain.score, "reward") == 1)


@EACH
def test_each_split_reads_its_own_rows_and_validity_all_of_them(task: MleTask) -> None:
    truth = answers(task)
    wrong = np.roll(truth.truth, 1, axis=0)
    mixed = truth.truth.copy()
    mixed[truth.rows["reward"]] = wrong[truth.rows["reward"]]
    data = submission_bytes(task, mixed)
    assert grade(task, data, "final").score == pytest.approx(task.metric.perfect, abs=1e-5)
    assert grade(task, data, "reward").score == grade(task, submission_bytes(task, wrong), "reward").score
    assert grade(task, data, "reward").score != grade(task, data, "final").score
    lines = data.splitlines(keepends=True)
    final = int(truth.rows["final"][0])
    short = b"".join(line for place, line in enumerate(lines) if place != final + 1)
    for split in SPLITS:
        reason = grade(task, short, split).reason
        assert reason is not None
        assert reason.startswith(f"1 of the {len(truth.truth)} ids of test.csv are absent, for example ")


def test_what_another_column_says_is_no_matter(mine: MleTask) -> None:
    data = submission_bytes(mine, answers(mine).truth).decode().splitlines()
    wide = "\n".join(f"{line},{'note' if place == 0 else place}" for place, line in enumerate(data)).encode()
    assert grade(mine, wide, "final") == grade(mine, "\n".join(data).encode(), "final")


@given(st.binary(max_size=300))
@settings(deadline=None)
def test_no_bytes_raise(data: bytes) -> None:
    for task in ALL[-2:]:
        result = grade(task, data, "final")
        assert (result.score is None) != (result.reason is None)


MLE_BENCH = set(
    "competition_id score gold_threshold silver_threshold bronze_threshold median_threshold any_medal gold_medal "
    "silver_medal bronze_medal above_median submission_exists valid_submission is_lower_better created_at "
    "submission_path".split()
)


@EACH
def test_a_report_has_the_fields_of_mle_bench(task: MleTask) -> None:
    gold = report(task, submission_bytes(task, answers(task).truth), "x.csv")
    assert set(gold) == {*MLE_BENCH, "reason", "grader", "grader_note"}
    assert (gold["gold_medal"], gold["silver_medal"], gold["bronze_medal"], gold["any_medal"]) == (
        True,
        False,
        False,
        1,
    )
    assert (gold["valid_submission"], gold["above_median"], gold["reason"]) == (True, True, None)
    assert (gold["grader"], gold["grader_note"]) == ("workbench", None)
    assert gold["is_lower_better"] is not task.higher_is_better
    assert datetime.fromisoformat(gold["created_at"])
    missing, bad = report(task, None), report(task, b"a,b\n")
    assert set(missing) == set(bad) == set(gold)
    assert (missing["submission_exists"], missing["valid_submission"], missing["score"]) == (False, False, None)
    assert (bad["submission_exists"], bad["valid_submission"], bad["score"]) == (True, False, None)
    assert missing["reason"] == "no submission.csv was written."
    assert bad["reason"].startswith(f"column '{task.id_column}' is missing: the columns are 'a', 'b', ")
    assert not any(value for name, value in missing.items() if name.endswith("medal") or name == "above_median")


@pytest.mark.parametrize("name", [field.name for field in fields(Thresholds)])
def test_a_score_is_rounded_before_it_meets_a_threshold(mine: MleTask, name: str) -> None:
    """Five decimals, as mle-bench; a medal is won at its threshold, the median is beaten only beyond it."""
    data = submission_bytes(mine, np.roll(answers(mine).truth, 1, axis=0))
    at = report(mine, data)["score"]
    assert at == round(at, 5)
    board = Thresholds(gold=0.99, silver=0.98, bronze=0.97, median=0.96)
    moved = report(replace(mine, thresholds=replace(board, **{name: at})), data)
    assert (moved["any_medal"], moved["above_median"]) == (name != "median", False)
    raised = report(replace(mine, thresholds=replace(board, **{name: at + 1e-5})), data)
    assert (raised["any_medal"], raised["above_median"]) == (False, False)
