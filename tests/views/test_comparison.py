"""Runs side by side, from records by hand."""

from __future__ import annotations

import re
from typing import Any

import pytest

from workbench.views.comparison import arms_table, mean_curves, render, table


def record(arm: str, seed: int, curve: list[tuple[float, float]], after: float, **more: Any) -> dict[str, Any]:
    facts = {"valid_before": 0.2, "valid_after": after, "reward_before": 0.1, "reward_after": after / 2, "steps": 4}
    curves = {"valid": curve, "reward": [(x, y / 2) for x, y in curve]}
    known = {"name": f"{arm}-s{seed}", "arm": arm, "seed": seed, "varied": {"buffer": arm == "full"}, "status": "done"}
    return {**known, "reason": None, "facts": facts, "curves": curves, "commit": "abc", **more}


RECORDS = [
    record("full", 0, [(0, 0.2), (10, 0.4), (20, 0.8)], 0.8),
    record("roots", 0, [(0, 0.2), (15, 0.2)], 0.6),
    record("full", 1, [(0, 0.2), (20, 0.6)], 0.6),
    record("roots", 1, [(0, 0.2), (10, 0.2), (30, 0.6)], 0.3),
    record("full", 2, [], 0.0, status="failed", reason="<b>no disk</b>", facts={}, curves={}),
]


def test_areas_are_taken_at_equal_executions() -> None:
    runs = table(RECORDS)
    assert runs["area_executions"].tolist()[:4] == [15] * 4, "the shortest curve ends there"
    # To 10: 10 · 0.3 = 3; at 15 the value is 0.6: 5 · 0.5 = 2.5; (3 + 2.5) / 15.
    assert runs["area_valid"][0] == pytest.approx(5.5 / 15)
    assert runs["area_valid"][1] == pytest.approx(0.2)
    # At 15: 0.5; (0.2 + 0.5) / 2.
    assert runs["area_valid"][2] == pytest.approx(0.35)
    # To 10: 2; at 15 the value is 0.3: 5 · 0.25 = 1.25; 3.25 / 15.
    assert runs["area_valid"][3] == pytest.approx(3.25 / 15)
    assert runs["area_reward"][0] == pytest.approx(2.75 / 15)
    assert runs["area_valid"].isna()[4]
    assert runs["reason"][4] == "<b>no disk</b>"
    assert runs["buffer"].tolist() == [True, False, True, False, True]


def test_arms_are_held_against_the_first_by_seed() -> None:
    arms = arms_table(table(RECORDS)).set_index("arm")
    assert arms["runs"].to_dict() == {"full": 2, "roots": 2}
    assert arms["valid_after"].to_dict() == pytest.approx({"full": 0.7, "roots": 0.45})
    assert arms["valid_after - full"]["roots"] == pytest.approx(-0.25)
    assert arms["valid_after - full 95 %"]["roots"] == "-0.3 to -0.2 (n=2)"
    assert arms["valid_after 95 %"]["full"] == "0.6 to 0.8"


def test_mean_curves_end_where_all_runs_still_are() -> None:
    curves = mean_curves(RECORDS, "valid")
    executions, values = curves["full"]
    assert (executions[0], executions[-1]) == (0, 15)
    assert values[0] == pytest.approx(0.2)
    assert values[-1] == pytest.approx((0.6 + 0.5) / 2)


def test_the_page_stands_by_itself() -> None:
    html = render("Sweep <x>", RECORDS, "Runs of the trainer.")
    assert "<script" not in html
    assert not re.search(r"(?:src|href)=.https?:", html)
    assert "&lt;b&gt;no disk&lt;/b&gt;" in html
    assert html.count("<svg xmlns") == 4
    assert "4 done, 1 failed" in html


def test_a_batch_that_has_not_begun_has_a_page() -> None:
    left = {"name": "a", "arm": "all", "seed": None, "varied": {}, "status": "left", "facts": {}, "curves": {}}
    assert "1 left" in render("Sweep", [left])
