from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.config import COMPONENTS as NAMES
from workbench.config import make_config, reward_weights
from workbench.learning.advantages import group_advantages
from workbench.learning.rewards import COMPONENTS, is_copy, sample_shas, score, score_groups
from workbench.learning.rewards import total as weighted
from workbench.tasks.catalog import load_tasks
from workbench.tasks.leaderboard import thresholds
from workbench.tasks.mle import MleTask
from workbench.types import (
    Action,
    Feedback,
    Group,
    Kind,
    State,
    StopReason,
    Turn,
    Verdict,
    WorkbenchError,
)

DRAFT = State("t", Kind.DRAFT)
VALID = Feedback(Verdict.OK, "code", score=0.7)
WEIGHT = st.floats(1e-6, 1e6)


def total(feedback: Feedback, position: float | None = None, *, copied: bool = False) -> float:
    reward = score(DRAFT, feedback, position=position, copied=copied)
    assert reward is not None
    return reward.total


def test_ladder() -> None:
    assert total(Feedback(Verdict.RUNTIME_ERROR, None)) == 0
    failures = (Verdict.RUNTIME_ERROR, Verdict.TIMEOUT, Verdict.MEMORY_LIMIT, Verdict.OUTPUT_LIMIT)
    assert [total(Feedback(verdict, "code")) for verdict in failures] == [0.05] * 4
    assert total(Feedback(Verdict.INVALID_SUBMISSION, "code")) == 0.10
    assert total(VALID, 0.0) == 0.2
    assert total(VALID, 0.5) == pytest.approx(0.6)  # 0.2 + 0.8 · 0.5
    assert total(VALID, 1.0) == 1.0


def test_a_copy_gets_no_more_than_running() -> None:
    assert total(VALID, 1.0, copied=True) == 0.10
    assert total(Feedback(Verdict.RUNTIME_ERROR, "code"), copied=True) == 0.05


def test_lost_by_us_is_not_zero() -> None:
    assert score(DRAFT, Feedback(Verdict.INFRASTRUCTURE, "code"), position=None, copied=False) is None


def test_components_are_as_measured() -> None:
    reward = score(DRAFT, VALID, position=0.25, copied=True)
    assert reward is not None
    facts = {"code": 1.0, "ran": 1.0, "valid": 1.0, "copied": 1.0, "position": 0.25}
    assert reward.components == {**facts, "ladder": 0.10, "format": 1.0, "own_score": 0.0}
    reward = score(DRAFT, Feedback(Verdict.TIMEOUT, "code"), position=None, copied=False)
    assert reward is not None
    facts = {"code": 1.0, "ran": 0.0, "valid": 0.0, "copied": 0.0}
    assert reward.components == {**facts, "ladder": 0.05, "format": 1.0, "own_score": 0.0}


# --- components and weights

BOARD = (0.9, 0.8, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
"""Ten entries: gold is the first, silver the second, bronze the fourth; the median is 0.55."""
IMPROVE = State("t", Kind.IMPROVE, "x = 1")


def paid(task: MleTask, feedback: Feedback, weights: str, *, state: State = IMPROVE, parent: float = 0.0) -> Turn:
    """A turn scored with `weights` on `task`, whose state's script had the hidden score `parent`."""
    known = Feedback(Verdict.OK, state.code, score=parent)
    group = Group("g", state, (1,), (turn(state, feedback),))
    (scored,) = score_groups([group], {"t": task}, reward_weights(weights), lambda task, code: known)
    return scored.turns[0]


def components(turn: Turn) -> dict[str, float]:
    assert turn.reward is not None
    return dict(turn.reward.components)


def test_the_names_of_the_settings_are_those_of_the_components() -> None:
    assert tuple(COMPONENTS) == NAMES


@pytest.mark.parametrize(
    ("score", "rank", "medal"),
    [
        (0.95, 1.0, 1.0),
        (0.9, 1.0, 1.0),  # equal to the best: nobody is strictly better
        (0.8, 0.9, 0.9),  # one is; silver
        (0.7, 0.7, 0.8),  # three are; bronze
        (0.6, 0.6, 0.4),  # above the median
        (0.5, 0.5, 0.2),  # valid
        (0.0, 0.0, 0.2),
    ],
)
def test_rank_and_medal_are_read_off_the_board(task: MleTask, score: float, rank: float, medal: float) -> None:
    measured = components(paid(task, replace(VALID, code="x = 2", score=score), "default"))
    assert (measured["rank"], measured["medal"]) == (pytest.approx(rank), medal)


def test_what_is_no_submission_of_its_own_has_no_rank_no_medal_and_loses_its_parents_position(task: MleTask) -> None:
    copy, failed = replace(VALID, code="x = 1 # mine", score=0.9), Feedback(Verdict.TIMEOUT, "x = 3")
    for feedback in (copy, failed):
        measured = components(paid(task, feedback, "default", parent=0.7))  # (0.7 - 0.5)/(0.9 - 0.5) = 0.5
        assert (measured["rank"], measured["medal"], measured["gain"]) == (0, 0, pytest.approx(-0.5))


def test_gain_is_over_the_parent_and_does_not_apply_to_drafts(task: MleTask) -> None:
    better = replace(VALID, code="x = 2", score=0.8)  # position 0.75
    assert components(paid(task, better, "default", parent=0.7))["gain"] == pytest.approx(0.25)
    debug = replace(IMPROVE, kind=Kind.DEBUG)
    nothing = Feedback(Verdict.RUNTIME_ERROR, "x = 1")
    (group,) = score_groups([Group("g", debug, (1,), (turn(debug, better),))], {"t": task}, known=lambda *_: nothing)
    assert components(group.turns[0])["gain"] == pytest.approx(0.75), "the parent had no submission: position 0"
    draft = paid(task, better, "ladder:0.5,gain:0.5", state=DRAFT)
    assert "gain" not in components(draft)
    (unknown,) = score_groups([Group("g", IMPROVE, (1,), (turn(IMPROVE, better),))], {"t": task})
    assert "gain" not in components(unknown.turns[0]), "not known is not 0"


def test_form_and_own_score_by_hand(task: MleTask) -> None:
    printed = Feedback(Verdict.INVALID_SUBMISSION, "x = 1", own_score=0.5)
    crashed = Feedback(Verdict.RUNTIME_ERROR, "x = (", own_score=0.5)  # printed, and then it failed
    prose = Feedback(Verdict.RUNTIME_ERROR, None)
    found = [components(paid(task, feedback, "default")) for feedback in (printed, crashed, prose)]
    assert [(c["format"], c["own_score"]) for c in found] == [(1, 1), (0, 0), (0, 0)]


def test_totals_are_weighted_means_of_what_applies(task: MleTask) -> None:
    better = replace(VALID, code="x = 2", score=0.8)  # ladder 0.2 + 0.8 · 0.75 = 0.8, gain 0.25, rank 0.9
    cases = {
        "ladder:0.8,gain:0.2": 0.8 * 0.8 + 0.2 * 0.25,
        "ladder:3,gain:1": (3 * 0.8 + 0.25) / 4,
        "ladder:0.5": 0.8,  # alone, whatever its weight
        "rank:0.1,ladder:0.1": (0.9 + 0.8) / 2,  # the best possible is 1, as headroom assumes
        "rank": 0.9,
        "rank, format:0.5": (0.9 + 0.5) / 1.5,
    }
    for weights, expected in cases.items():
        reward = paid(task, better, weights, parent=0.7).reward
        assert reward is not None
        assert reward.total == pytest.approx(expected), weights
    draft = paid(task, better, "ladder:1,gain:1", state=DRAFT).reward
    assert draft is not None
    assert draft.total == pytest.approx(0.8), "what does not apply is in no denominator"
    worse = paid(task, replace(VALID, code="x = 3", score=0.5), "ladder:0.1,gain:0.9", parent=0.9).reward
    assert worse is not None
    assert worse.total == 0, "0.1 · 0.2 - 0.9 · 1 is clipped"


def test_weights_keep_mixes_apart_that_a_sum_before_normalising_would_not() -> None:
    totals = [weighted(c, {"rank": 1.0, "format": 0.5}) for c in ({"rank": 1, "format": 0}, {"rank": 0, "format": 1})]
    assert totals == pytest.approx([1 / 1.5, 0.5 / 1.5])  # 1 and 0.5, over the sum of the weights
    (advantages,), _ = group_advantages([totals], "none")
    assert advantages == pytest.approx([1 / 6, -1 / 6])


@given(st.floats(0, 1), st.booleans())
def test_the_default_is_the_ladder_to_the_last_bit(place: float, copied: bool) -> None:
    assert total(VALID, place, copied=copied) == (0.10 if copied else 0.20 + (1 - 0.20) * place)


@given(st.dictionaries(st.sampled_from(NAMES), st.floats(-1, 1)), st.dictionaries(st.sampled_from(NAMES), WEIGHT))
def test_every_total_lies_between_0_and_1(values: dict[str, float], weights: dict[str, float]) -> None:
    assert 0 <= weighted(values, weights) <= 1


@pytest.mark.parametrize(
    ("given_", "reason"),
    [
        ("ladder:0.8,luck:0.2", r"'luck' is no component, expected default or name:weight of ladder, rank, gain"),
        ("", "'' is no component"),
        ("ladder:1,ladder:2", "'ladder' stands there twice"),
        ("ladder:-1", "the weight '-1' of ladder is no number above 0"),
        ("ladder:nan", "no number above 0"),
        ("ladder:1e308,gain:1e308", r"'1e308' of ladder is no number above 0 and up to 1e\+06"),
        ("ladder:0.5:0.5", "no number above 0"),
        ({"rank": True}, "no number above 0"),
        ("gain", "a draft has no parent to gain over, add another component"),
        ({}, "no component"),
        (1.0, "expected text"),
    ],
)
def test_nonsense_is_refused_with_a_sentence(given_: object, reason: str) -> None:
    with pytest.raises(WorkbenchError, match=rf"^reward=.* is not accepted: .*{reason}"):
        make_config(reward=given_)


def test_a_mapping_of_a_file_is_the_text_of_a_command_line() -> None:
    config = make_config(reward={"ladder": 0.8, "gain": 0.2})
    assert config == make_config(reward="ladder:0.8,gain:0.2")
    assert reward_weights(config.reward) == {"ladder": 0.8, "gain": 0.2}
    assert reward_weights("default") == reward_weights("ladder") == {"ladder": 1.0}


def test_a_board_is_needed_where_it_is_asked_for() -> None:
    with pytest.raises(WorkbenchError, match="reward component 'rank' needs the board of 't'"):
        score(DRAFT, VALID, position=0.5, copied=False, weights={"rank": 1.0})


@pytest.mark.parametrize("position", [None, math.nan, math.inf, -0.01, 1.5])
def test_position_must_be_a_number_from_0_to_1(position: float | None) -> None:
    with pytest.raises(WorkbenchError, match=rf"position={position} .* expected a number in \[0, 1\]"):
        score(DRAFT, VALID, position=position, copied=False)


@pytest.mark.parametrize(
    ("code", "parent", "same"),
    [
        ("x = 1\nprint(x)\n", "x=1 # one\n\n\nprint( x )", True),
        ("if x:\n    y = 1\n", "if x:\n  y = 1", True),
        ("if x:\n    y = 1\n    z = 2", "if x:\n    y = 1\nz = 2", False),
        ("x = 1", "x = 2", False),
        ("x = 'a b'", "x = 'ab'", False),
        ("x = (", "  x = (  \n", True),  # not Python: lines without surrounding space
        ("def f(:\n  '''", 'def f(:\n  """', False),
        ("", "", False),
        ("x = 1", "", False),
        ("x = 1\ud800", "x = 1\ud800", True),
    ],
)
def test_is_copy(code: str, parent: str, same: bool) -> None:
    assert is_copy(code, parent) is same
    assert is_copy(parent, code) is same


def turn(state: State, feedback: Feedback) -> Turn:
    return Turn(state, Action("text", (1,), (-0.1,), 0, StopReason.EOS), feedback, None, "g", "g/0")


@pytest.fixture
def task(tmp_path: Path) -> MleTask:
    pd.DataFrame({"id": [1, 2], "y": [0.5, 0.5]}).to_csv(tmp_path / "sample_submission.csv", index=False)
    facts = SimpleNamespace(
        public_dir=tmp_path,
        sample=tmp_path / "sample_submission.csv",
        dummy_score={"reward": 0.5, "final": 0.5},
        thresholds=thresholds(BOARD),
        scores=BOARD,
        higher_is_better=True,
    )
    return cast(MleTask, facts)


def test_score_groups_fills_in_every_reward(task: MleTask) -> None:
    sample = hashlib.sha256((task.public_dir / "sample_submission.csv").read_bytes()).hexdigest()
    improve = State("t", Kind.IMPROVE, "x = 1")
    turns = (
        turn(improve, replace(VALID, code="x = 2", score=0.7)),  # (0.7 - 0.5)/(0.9 - 0.5) = 0.5
        turn(improve, replace(VALID, code="x = 1  # better", score=0.9)),
        turn(improve, replace(VALID, code="x = 3", submission_sha=sample)),
        turn(improve, Feedback(Verdict.INFRASTRUCTURE, "x = 4")),
    )
    (group,) = score_groups([Group("g", improve, (1,), turns)], {"t": task})
    assert [t.reward and t.reward.total for t in group.turns] == [pytest.approx(0.6), 0.10, 0.10, None]
    assert group.rewards == pytest.approx([0.6, 0.1, 0.1])


def test_the_submission_of_the_parent_is_no_new_one_however_the_script_is_rewritten(task: MleTask) -> None:
    improve = State("t", Kind.IMPROVE, "m = 1")
    parent = replace(VALID, code="m = 1", score=0.7, submission_sha="a" * 64)
    turns = tuple(
        turn(improve, replace(VALID, code=code, score=0.7, submission_sha=sha * 64))
        for code, sha in (("model = 1", "a"), ("m = 1\npass", "a"), ("m = 2", "b"))
    )
    (group,) = score_groups([Group("g", improve, (1,), turns)], {"t": task}, {"ladder": 1.0}, lambda *_: parent)
    assert group.rewards == pytest.approx([0.1, 0.1, 0.6])


def test_the_sample_is_recognised_as_pandas_writes_it(task: MleTask) -> None:
    path = task.public_dir / "sample_submission.csv"
    rewritten = path.read_bytes().replace(b"\n", b"\r\n")
    assert hashlib.sha256(path.read_bytes()).hexdigest() in sample_shas(task)
    path.write_bytes(rewritten)  # and as it is now, not as it was when first read
    as_written = pd.read_csv(path).to_csv(index=False).encode()
    assert as_written != rewritten
    for form in (as_written, rewritten):
        assert hashlib.sha256(form).hexdigest() in sample_shas(task)


def test_the_sample_is_recognised_with_fractions(task: MleTask) -> None:
    path = task.public_dir / "sample_submission.csv"
    frame = pd.read_csv(path)
    frame[frame.columns[-1]] = 1
    frame.to_csv(path, index=False)
    written = frame.astype({frame.columns[-1]: float}).to_csv(index=False).encode()
    assert hashlib.sha256(written).hexdigest() in sample_shas(task)


def test_the_sample_is_recognised_by_what_it_says() -> None:
    (cars,) = load_tasks("used-cars")
    frame = pd.read_csv(cars.sample)
    forms = (
        frame.assign(noise=1.5),
        frame.sample(frac=1, random_state=0),
        frame.astype({frame.columns[1]: float}),
        frame.iloc[:, ::-1],
    )
    written = [form.to_csv(index=False).encode() for form in forms]
    for data in (*written, cars.sample.read_bytes().replace(b"\n", b"\r\n")):
        assert cars.grade(data, "reward").content in sample_shas(cars)
    own = frame.assign(**{frame.columns[1]: frame[frame.columns[1]] + 1}).to_csv(index=False).encode()
    assert cars.grade(own, "reward").content not in sample_shas(cars)
    assert cars.grade(b"odd", "reward").content is None
