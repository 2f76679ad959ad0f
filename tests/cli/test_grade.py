"""`workbench grade TASK SUBMISSION.csv`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.cli.main import run_command
from workbench.config import ROOT

CARS = ROOT / "data" / "tasks" / "used-cars"
SAMPLE = CARS / "public" / "sample_submission.csv"


def graded(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert run_command(["grade", *arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.count("\n") == 1
    return json.loads(out)


def test_the_sample_is_valid_and_wins_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    found = graded(capsys, "used-cars", str(SAMPLE))
    assert (found["competition_id"], found["submission_path"]) == ("used-cars", str(SAMPLE))
    assert (found["valid_submission"], found["submission_exists"], found["reason"]) == (True, True, None)
    assert not any(found[f"{name}_medal"] for name in ("any", "gold", "silver", "bronze"))
    assert found["is_lower_better"] is True
    assert found["score"] > found["median_threshold"] > found["bronze_threshold"] > found["gold_threshold"]


def test_the_answers_win_gold_and_are_told_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["grade", str(CARS), str(CARS / "private" / "answers.csv")]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == "score 0 (lower is better): gold medal, above the median"
    assert second.startswith("thresholds: gold 1857.")


def test_an_invalid_submission_is_a_grade_with_its_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The grade was asked for and given, so the exit status is 0, as with mle-bench."""
    bad = tmp_path / "bad.csv"
    bad.write_text("car_id,price\nC1,5\n")
    found = graded(capsys, "used-cars", str(bad))
    assert (found["score"], found["valid_submission"], found["submission_exists"]) == (None, False, True)
    assert found["reason"] == "id column 'car_id' holds 'C1' on line 2, which is no id of test.csv."
    assert run_command(["grade", "used-cars", str(bad)]) == 0
    assert capsys.readouterr().out == f"invalid: {found['reason']}\n"


@pytest.mark.parametrize("content", [b"", b"\x89PNG\r\n\x00", b"\xff\xfea\x00", b"a\n" * 10])
def test_whatever_the_file_holds_there_is_a_reason(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "odd.csv").write_bytes(content)
    found = graded(capsys, "used-cars", str(tmp_path / "odd.csv"))
    assert found["reason"].endswith(".")
    assert found["score"] is None


@pytest.mark.skipif(sys.platform != "linux", reason="address space is limited and read as on Linux: run it there")
def test_a_huge_file_is_refused_without_being_read(tmp_path: Path) -> None:
    """4 GB of nothing, by a process that may not hold 1 GB more than it needs to start."""
    huge = tmp_path / "huge.csv"
    with huge.open("wb") as file:
        file.truncate(4 * 2**30)
    program = (
        "import resource, sys; from workbench.cli.main import run_command; import numpy, pandas;"
        "pages = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize();"
        "resource.setrlimit(resource.RLIMIT_AS, (pages + 2**30,) * 2);"
        f"sys.exit(run_command(['grade', 'used-cars', {str(huge)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "invalid: the file is larger than 1000000 bytes: the columns 'car_id', 'price' are wanted and nothing else.\n"
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["used-cars", "nowhere.csv"], "'nowhere.csv' does not exist: expected the CSV file of a submission."),
        (
            ["used-cars", f"{'n' * 300}.csv"],
            f"'{'n' * 300}.csv' does not exist: expected the CSV file of a submission.",
        ),
        (
            ["n" * 300, str(SAMPLE)],
            f"'{'n' * 300}' cannot be read (File name too long): expected a task, see `workbench tasks list`, "
            "or its folder.",
        ),
        (["used-cars", "/"], "'/' is a folder: expected the CSV file of a submission."),
        (
            ["used-cars", str(ROOT / "README.md")],
            f"'{ROOT / 'README.md'}' is not named *.csv: expected the CSV file of a submission, as mle-bench does.",
        ),
        (["all", str(SAMPLE)], "'all' names 22 tasks: expected one, see `workbench tasks list`."),
        (
            ["used-carts", str(SAMPLE)],
            "'used-carts' is no task, set or folder: did you mean 'used-cars' or 'homes-cat'?",
        ),
    ],
)
def test_wrong_usage_is_one_sentence(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["grade", *arguments]) == 1
    out, err = capsys.readouterr()
    assert (out, err) == ("", sentence + "\n")


def test_a_missing_argument_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["grade", "used-cars"]) == 2
    assert "Missing argument 'SUBMISSION.csv'" in capsys.readouterr().err
