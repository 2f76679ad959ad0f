"""The time that is left of a run, from times that are given."""

from __future__ import annotations

import pytest

from workbench.config import make_config
from workbench.learning.metrics import due, dues_left
from workbench.learning.pace import RECENT, Pace


def test_the_first_step_is_no_measure() -> None:
    pace = Pace()
    assert pace.left_s(40, 0) is None
    pace.add_step(60.0, 50.0, 32)
    assert pace.left_s(39, 256) is None
    pace.add_step(4.0, 3.2, 32)
    assert pace.left_s(38, 0) == pytest.approx(152.0)
    assert pace.left_s(38, 256) == pytest.approx(152.0 + 25.6), "a draft is taken for an action: 0.1 s"


def test_the_last_steps_count() -> None:
    pace = Pace()
    for seconds in (60.0, 100.0, *[2.0] * RECENT):
        pace.add_step(seconds, 1.0, 1)
    assert pace.left_s(3, 0) == pytest.approx(6.0)


def test_one_step_in_which_a_script_hung_changes_little() -> None:
    pace = Pace()
    for seconds in (9.0, 2.0, 30.0, 2.0):
        pace.add_step(seconds, seconds, 2)
    assert pace.left_s(2, 10) == pytest.approx(2 * 2.0 + 10 * 1.0)


def test_measured_drafts_say_more_than_steps_and_need_none() -> None:
    pace = Pace()
    pace.add_drafts(64, 3.2)
    assert pace.left_s(0, 192) == pytest.approx(9.6)
    assert pace.left_s(1, 192) is None
    pace.add_step(9.0, 9.0, 1)
    pace.add_step(9.0, 9.0, 1)
    assert pace.left_s(0, 64) == pytest.approx(3.2)


def test_measurements_along_training_are_counted_to_the_last() -> None:
    every_4 = make_config(steps=10, eval_every=4)
    assert [dues_left(step, every_4) for step in range(11)] == [
        sum(due(later, every_4) for later in range(step + 1, 11)) for step in range(11)
    ]
    assert dues_left(0, make_config(steps=10)) == 0
    assert dues_left(12, every_4) == 0, "the length of a run may be cut while it goes on"


def test_nothing_left_is_no_time() -> None:
    assert Pace().left_s(0, 0) == 0.0
    assert Pace().left_s(-1, 0) == 0.0, "the length of a run may be cut while it goes on"
