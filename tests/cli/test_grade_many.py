"""`workbench grade` of competitions of mle-bench, of many submissions, and averaged over seeds."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
from miniature import Bench, add, make_bench, truth_of

from workbench.cli.main import run_command
from workbench.config import ROOT

WHALE = "the-icml-2013-whale-challenge-right-whale-redux"
CACTUS = "aerial-cactus-identification"


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = make_bench(tmp_path)
    monkeypatch.setenv("WORKBENCH_MLEBENCH", str(made.repo))
    for name in (CACTUS, WHALE):
        add(made, name)
        truth_of(name).to_csv(tmp_path / f"{name}.csv", index=False)
    return made


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert run_command([*arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out)


def test_a_competition_is_graded_listed_and_checked(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = said(capsys, "grade", str(bench.root / WHALE), str(tmp_path / f"{WHALE}.csv"))
    assert (found["competition_id"], found["score"], found["gold_medal"]) == (WHALE, 1.0, True)
    assert (found["grader"], found["grader_note"], found["reason"]) == ("mle-bench", None, None)
    assert said(capsys, "tasks", "check", str(bench.root))["ok"] is True
    rows = said(capsys, "tasks", "list", str(bench.root))["tasks"]
    assert [(row["id"], row["metric"], row["direction"], row["gold"]) for row in rows] == [
        (CACTUS, "auc", "higher", 0.98),
        (WHALE, "auc", "higher", 0.98),
    ]
    assert run_command(["tasks", "list", str(bench.root)]) == 0
    assert capsys.readouterr().out.splitlines()[2].startswith(WHALE)


def test_a_file_of_submissions(bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("clip\n1\n")
    runs = [(WHALE, f"{WHALE}.csv"), (WHALE, "bad.csv"), (CACTUS, "nowhere.csv"), (CACTUS, f"{CACTUS}.csv")]
    lines = [json.dumps({"competition_id": name, "submission_path": str(tmp_path / file)}) for name, file in runs]
    (tmp_path / "runs.jsonl").write_text("\n".join(["# mine", *lines, ""]))
    arguments = ["grade", str(bench.root), "--jsonl", str(tmp_path / "runs.jsonl"), "--out", str(tmp_path / "out")]
    found = said(capsys, *arguments)
    sums = {name: value for name, value in found.items() if name != "competition_reports"}
    assert sums == {
        "total_runs": 4,
        "total_runs_with_submissions": 3,
        "total_valid_submissions": 2,
        "total_medals": 2,
        "total_gold_medals": 2,
        "total_silver_medals": 0,
        "total_bronze_medals": 0,
        "total_above_median": 2,
    }
    (written,) = (tmp_path / "out").glob("*_grading_report.json")
    assert json.loads(written.read_text()) == found
    assert [report["submission_exists"] for report in found["competition_reports"]] == [True, True, False, True]
    (tmp_path / "runs.jsonl").write_text('{"competition_id": 3}\n')
    assert run_command(arguments) == 1
    assert capsys.readouterr().err.startswith(f"Line 1 of '{tmp_path / 'runs.jsonl'}' is not as wanted: expected")


def report(name: str, medal: str | None) -> dict:
    medals = {f"{other}_medal": other == medal for other in ("gold", "silver", "bronze")}
    won = medal is not None
    flags = {"above_median": won, "submission_exists": True, "valid_submission": True}
    return {"competition_id": name, **medals, **flags}


def test_the_mean_over_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three seeds of two competitions win 2, 1 and 0 medals: 50 ± 100·(1/2)/√3; then one report is missing."""
    files = [
        [report("a", "gold"), report("b", "bronze")],
        [report("a", "silver"), report("b", None)],
        [report("a", None), report("b", None)],
    ]
    paths = [tmp_path / f"{number}.json" for number in range(3)]
    for path, reports in zip(paths, files, strict=True):
        path.write_text(json.dumps({"competition_reports": reports}))
    arguments = [word for path in paths for word in ("--aggregate", str(path))]
    found = said(capsys, "grade", *arguments)
    assert (found["num_seeds_averaged"], found["num_competitions_per_seed"]) == (3, 2)
    error = 50 / math.sqrt(3)
    assert found["metrics"]["any_medal_percentage"] == pytest.approx(
        {"mean": 50.0, "standard_error": error, "ci_lower": 50 - 1.96 * error, "ci_upper": 50 + 1.96 * error}
    )
    assert found["metrics"]["gold_medal_percentage"]["mean"] == pytest.approx(100 / 6)
    assert found["metrics"]["valid_submissions_percentage"] == {
        "mean": 100.0,
        "standard_error": 0.0,
        "ci_lower": 100.0,
        "ci_upper": 100.0,
    }
    paths[1].write_text(json.dumps({"competition_reports": files[1][:1]}))
    assert said(capsys, "grade", *arguments)["num_seeds_averaged"] == 2
    padded = said(capsys, "grade", *arguments, "--pad-missing")
    assert padded["num_seeds_averaged"] == 3
    assert padded["metrics"]["valid_submissions_percentage"]["mean"] == pytest.approx(100 * (1 + 1 + 0.5) / 3)
    (tmp_path / "ids.txt").write_text("a\nb\nc")
    split = ["--split", str(tmp_path / "ids.txt")]
    assert said(capsys, "grade", *arguments, *split, "--pad-missing")["metrics"]["total_competitions"]["mean"] == 3.0
    assert run_command(["grade", *arguments, *split]) == 1
    assert capsys.readouterr().err.startswith("There are no reports of c, so no seed is complete: grade them")
    assert run_command(["grade", "--aggregate", str(ROOT / "README.md")]) == 1
    assert "is no report: expected what" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["a", "b.csv", "--out", "x"], "--out says nothing of one submission: leave it out."),
        (["a", "b.csv", "--pad-missing"], "--pad-missing says nothing of one submission: leave it out."),
        (["a", "b.csv", "--jsonl", "runs"], "SUBMISSION says nothing with --jsonl: leave it out."),
        (["a", "--jsonl", "runs", "--split", "x"], "--split says nothing with --jsonl: leave it out."),
        (["a", "--aggregate", "x.json"], "TASK says nothing with --aggregate: leave it out."),
        (["--aggregate", "x.json", "--jsonl", "y"], "--jsonl says nothing with --aggregate: leave it out."),
    ],
)
def test_what_says_nothing_is_refused(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["grade", *words]) == 1
    assert capsys.readouterr().err.strip() == sentence


def test_nonsense_in_files_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "deep.json"
    file.write_text("[" * 200_000)
    for words in (["--jsonl", str(file)], ["--aggregate", str(file)]):
        assert run_command(["grade", *words]) == 1
        assert "expected" in capsys.readouterr().err.splitlines()[-1]
    os.mkfifo(tmp_path / "pipe.csv")
    assert run_command(["grade", "diamonds", str(tmp_path / "pipe.csv")]) == 1
    assert "is no ordinary file" in capsys.readouterr().err
    file.write_text(
        json.dumps({"competition_id": "diamonds", "submission_path": "no\u2028where.csv"}, ensure_ascii=False)
    )
    assert said(capsys, "grade", "--jsonl", str(file))["total_runs"] == 1


def test_words_for_people(bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (bench.place(CACTUS) / "grade.py").write_text("import nowhere\n")
    assert run_command(["grade", str(bench.root / CACTUS), str(tmp_path / f"{CACTUS}.csv")]) == 0
    first, _, third = capsys.readouterr().out.splitlines()
    assert first == "score 1 (higher is better): gold medal, above the median"
    assert third.startswith(f"graded by the workbench: mlebench.competitions.{CACTUS}.grade cannot be imported")


def test_reports_of_one_second_are_kept_side_by_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.strftime", lambda *_: "2026-01-02T03-04-05")
    line = {"competition_id": "diamonds", "submission_path": f"{'n' * 300}.csv"}
    (tmp_path / "runs.jsonl").write_text(json.dumps(line))
    arguments = ["grade", "--jsonl", str(tmp_path / "runs.jsonl"), "--out"]
    for _ in range(3):
        assert said(capsys, *arguments, str(tmp_path / "out"))["total_runs_with_submissions"] == 0
    stem = "2026-01-02T03-04-05-GMT"
    names = [f"{stem}-1_grading_report.json", f"{stem}-2_grading_report.json", f"{stem}_grading_report.json"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names
    assert all(json.loads(path.read_text())["total_runs"] == 1 for path in (tmp_path / "out").iterdir())
    for place, sentence in (("runs.jsonl", "is a file: expected a folder"), ("runs.jsonl/x", "cannot be written (Not")):
        assert run_command([*arguments, str(tmp_path / place)]) == 1
        err = capsys.readouterr().err
        assert sentence in err
        assert "choose another with --out" in err


def test_what_would_count_twice_or_wrongly_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, ids = tmp_path / "r.json", tmp_path / "ids.txt"
    file.write_text(json.dumps({"competition_reports": [report("a", "gold")]}))
    (tmp_path / "link.json").symlink_to(file)
    ids.write_text("a\na\n")
    words = ["grade", "--aggregate", str(file)]
    for more, sentence in (
        (["--aggregate", str(file)], f"'{file}' is given twice and would count as two seeds: leave one of them out."),
        (["--aggregate", str(tmp_path / "link.json")], "would count as two seeds"),
        (["--split", str(ids)], f"'{ids}' names 'a' twice: leave one of them out."),
    ):
        assert run_command([*words, *more]) == 1
        assert sentence in capsys.readouterr().err
    file.write_text(json.dumps({"competition_reports": [{**report("a", None), "gold_medal": "no"}]}))
    assert run_command(words) == 1
    assert "says gold_medal='no' of 'a': expected true or false, grade it again." in capsys.readouterr().err
