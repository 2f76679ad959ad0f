"""`tasks list`, `tasks check` and `grade`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from workbench.cli.main import run_command
from workbench.config import ROOT

CARS = ROOT / "data" / "tasks" / "used-cars"


def test_list_names_every_task(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["tasks", "list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["tasks"]
    assert sorted(row["id"] for row in rows if row["split"] == "heldout") == ["churn-lines", "used-cars"]
    assert run_command(["tasks", "list"]) == 0
    assert "used-cars" in capsys.readouterr().out


def test_check_says_ok_of_a_good_task_and_fails_for_a_broken_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["tasks", "check", "used-cars", str(CARS)]) == 0
    assert "1 of 1 tasks prove themselves." in capsys.readouterr().out
    (tmp_path / "config.yaml").write_text("id: mine\n")
    assert run_command(["tasks", "check", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert "FAILED  1 of 1 proofs" in out
    assert "is no task folder: 'description.md' is missing" in err
    assert err.count("\n") == 1
    assert run_command(["tasks", "check", str(tmp_path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["tasks"][0]["proofs"]["loads"]


def test_check_of_an_unknown_name_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["tasks", "check", "used-carts"]) == 1
    assert "did you mean 'used-cars'" in capsys.readouterr().err


def test_grade_gives_the_report_and_a_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample = CARS / "public" / "sample_submission.csv"
    assert run_command(["grade", "used-cars", str(sample), "--json"]) == 0
    graded = json.loads(capsys.readouterr().out)
    assert graded["valid_submission"]
    assert graded["competition_id"] == "used-cars"
    assert not graded["any_medal"]
    bad = tmp_path / "bad.csv"
    bad.write_text(sample.read_text().splitlines()[0] + "\n")
    assert run_command(["grade", "used-cars", str(bad)]) == 0
    assert capsys.readouterr().out.startswith("invalid: ")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["used-cars", "nowhere.csv"], "'nowhere.csv' does not exist: expected the CSV file of a submission."),
        (["used-cars", "/"], "'/' is a folder: expected the CSV file of a submission."),
        (["all", "nowhere.csv"], "'all' names 8 tasks: expected one, see `workbench tasks list`."),
    ],
)
def test_grade_refuses_in_one_sentence(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["grade", *arguments]) == 1
    assert capsys.readouterr().err == sentence + "\n"
