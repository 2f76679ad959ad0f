"""`workbench evaluate` on a real policy in the real sandbox: what it says, that it reads only, that it pairs."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from workbench.cli.evaluate import Plan, Work, draw, evaluate, find_subject
from workbench.cli.evaluate_tables import show
from workbench.cli.main import app, run_command
from workbench.config import Config, make_config
from workbench.learning import attempts, kept
from workbench.learning.measures import compare, measure, summary
from workbench.learning.trainer import train
from workbench.tasks.catalog import load_tasks
from workbench.types import Kind, State, WorkbenchError
from workbench.views.budgets import budget_curve

NAMES = "valid_rate any_medal gold silver bronze above_median human_rank steps_to_first_valid".split()


@pytest.fixture(scope="module")
def config(policy_folder: Path) -> Config:
    return make_config(
        policy=str(policy_folder),
        tasks="diamonds",
        eval_drafts=0,
        eval_tasks="used-cars",
        steps=1,
        groups=1,
        group_size=2,
        max_completion_tokens=6,
        max_prompt_tokens=700,
        temperature=2.0,
        device="cpu",
        wall_s=60,
    )


@pytest.fixture(scope="module")
def run(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step that trained at temperature 2."""
    path = tmp_path_factory.mktemp("runs") / "run"
    train(config, path)
    return path


@pytest.fixture(scope="module")
def result(run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    scripts = tmp_path_factory.mktemp("scripts")
    (scripts / "sample.py").write_text("import shutil\nshutil.copy('input/sample_submission.csv', 'submission.csv')\n")
    (scripts / "wrong.py").write_text("raise ValueError\n")
    before = digest(run)
    found = evaluate([str(run)], None, Plan(3, 3, 0), against="start", baseline=True, scripts=scripts)
    assert digest(run) == before, "a run is read, never written"
    return found


def digest(folder: Path) -> dict[str, str]:
    """SHA-256 of what a run keeps; the shared memory of a reader's connection is no part of it."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(("-shm", "-wal"))]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_the_fields_that_others_rely_on_are_there(result: dict[str, Any]) -> None:
    for name in NAMES:
        assert isinstance(result[name], float), name
        low, high = result[f"{name}_ci"]
        assert low <= result[name] <= high
    assert [task["id"] for task in result["tasks"]] == ["used-cars"], "those kept out, not those trained on"
    assert len(result["tasks"][0]["attempts"]) == 3
    assert [row["budget"] for row in result["curve"]] == [1, 2, 3]
    assert result["curve"][-1]["human_rank"] == result["human_rank"]
    assert (result["attempts"], result["budget"], result["seen"]) == (3, 3, [])
    assert 0 < result["template_share"] <= 1
    assert result["baseline"]["script"] == "sample"
    assert result["baseline"]["measures"]["valid_rate"]["theirs"] == 1.0
    against = result["against"]
    assert against["measures"]["valid_rate"]["theirs"] == against["valid_rate"]
    json.dumps(result, allow_nan=False, default=str)


def test_equal_calls_give_equal_figures_and_a_policy_differs_from_itself_by_nothing(
    run: Path, result: dict[str, Any]
) -> None:
    again = evaluate([str(run)], None, Plan(3, 3, 0), against=str(run))
    for name in NAMES:
        assert again[name] == result[name]
        assert again["against"]["measures"][name]["difference"] == 0.0
        assert again["against"]["measures"][name]["p"] == 1.0


def test_training_settings_of_sampling_are_not_those_of_evaluation(run: Path, config: Config) -> None:
    assert config.temperature == 2.0
    assert find_subject(str(run)).config.temperature == 1.0


def test_several_runs_are_seeds_of_one_experiment(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One start of two runs is measured twice: each run and what it is compared with draw from a seed of their own."""
    measured, seeds = attempts.run_attempts, []

    def watched(*arguments: Any, **named: Any) -> Any:
        seeds.append(named["seed"])
        return measured(*arguments, **named)

    monkeypatch.setattr(attempts, "run_attempts", watched)
    with pytest.raises(WorkbenchError, match=r"is named twice and would count as two seeds"):
        evaluate([str(run), f"{run}/."], None, Plan(2, 1, 0))
    other = shutil.copytree(run, tmp_path / "other")
    result = evaluate([str(run), str(other)], None, Plan(2, 1, 0), against="start")
    assert result["subject"] == [str(run), str(other)]
    assert result["intervals_over"] == "runs"
    assert [each["subject"] for each in result["runs"]] == [str(run), str(other)]
    assert seeds == [0, 1, 0, 1]
    assert set(result["against"]["measures"]) >= set(NAMES)


def test_greedy_is_one_attempt_and_training_tasks_are_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = evaluate([str(run)], "diamonds", Plan(1, 1, 0, greedy=True))
    assert result["seen"] == ["diamonds"]
    assert result["valid_rate_ci"] is None
    assert "trained on diamonds" in capsys.readouterr().err
    show(result)
    assert "trained on diamonds" in capsys.readouterr().out


def test_what_was_kept_is_not_measured_again(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a comparison that is broken off in its second half, the first half is there; the whole is as without it."""
    plan, measured = Plan(2, 2, 0), attempts.run_attempts
    calls: list[int] = []

    def interrupted(*arguments: Any, **named: Any) -> Any:
        calls.append(named["seed"])
        if len(calls) == 2:
            raise KeyboardInterrupt
        return measured(*arguments, **named)

    monkeypatch.setattr(attempts, "run_attempts", interrupted)
    with pytest.raises(KeyboardInterrupt):
        evaluate([str(run)], None, plan, against="start", keep=tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    whole = evaluate([str(run)], None, plan, against="start", keep=tmp_path)
    assert len(calls) == 3, "the run's own attempts were read back"
    assert f"{run} was measured before" in capsys.readouterr().err
    afresh = evaluate([str(run)], None, plan, against="start")
    assert [_timeless(task) for task in whole.pop("tasks")] == [_timeless(task) for task in afresh.pop("tasks")]
    assert whole == afresh
    calls.clear()
    evaluate([str(run)], None, replace(plan, seed=5), keep=tmp_path)
    assert calls == [5], "another seed is another measurement"


def _timeless(task: dict[str, Any]) -> dict[str, Any]:
    reports = [{name: value for name, value in each.items() if name != "created_at"} for each in task["attempts"]]
    return {**task, "attempts": reports}


def test_what_is_kept_is_read_back_as_it_was(tmp_path: Path) -> None:
    task = load_tasks("used-cars")[0]
    cut = attempts.Attempt(task, 0, State(task.id, Kind.DRAFT), lost=3)
    tried = attempts.Attempt(task, 1, State(task.id, Kind.DRAFT))
    tried.acts.append(attempts.Act(Kind.DRAFT, "x = 1", False, "syntax"))
    tried.standing.append(None)
    found = measure([cut, tried], 1)
    kept.write(tmp_path / "one.json", found)
    again = kept.read(tmp_path / "one.json")
    assert again is not None
    assert summary([again]) == summary([found])
    assert compare([again], [found]) == compare([found], [found])
    assert np.isnan(again.tables["valid_rate"][0, 0])
    assert kept.read(tmp_path / "none.json") is None


def test_the_tables_show_everything(result: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    show(result)
    out = capsys.readouterr().out
    for text in (
        *NAMES,
        "had the attempts ended earlier",
        "against start",
        "best fixed script, 'sample'",
        "3 attempts",
    ):
        assert text in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--greedy", "--attempts", "3"], "would be 3 equal attempts"),
        (["--scripts", "."], "it is read for --baseline"),
        (["--baseline", "--scripts", "nowhere"], "expected a folder of scripts"),
        (["--against", "start"], "'tiny' is no run and has no start"),
        (["--baseline", "--tasks", "all"], "none is left to choose the fixed script by"),
        (["--tasks", "used-car"], "used-car"),
        (["--against", "no/such/policy"], "no/such/policy"),
        (["no/such/run"], "no/such/run"),
        (["--tasks", ""], "'' names no task"),
        (["--figure", "/dev/full"], "The figure '/dev/full' is no file"),
        (["--figure", "/tmp"], "The figure '/tmp' is no file"),
        (["--against", "nosuchmodel"], "'nosuchmodel' is neither a file nor a folder"),
        (["--figure", "nowhere/curve.svg"], "'nowhere/curve.svg' cannot be written: its folder does not exist"),
    ],
)
def test_a_mistake_is_told_before_anything_is_loaded(
    more: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    done = CliRunner().invoke(app, ["evaluate", "tiny", *more])
    assert "loading" not in done.stderr
    assert isinstance(done.exception, WorkbenchError)
    assert sentence in str(done.exception)
    assert "\n" not in str(done.exception)


@pytest.mark.parametrize(
    "wrong", [["--attempts", "0"], ["--budget", "0"], ["--seed", "-1"], ["--attempts", "many"], []]
)
def test_a_wrong_command_line_is_answered_in_one_line(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["evaluate", *(["tiny", *wrong] if wrong else [])]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert all(word in line for word in wrong)


def test_a_device_out_of_memory_is_told_in_one_sentence(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(attempts, "rollout", full)
    assert run_command(["evaluate", str(run), "--attempts", "5"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"The device ran out of memory while '{run}' was measured: ")
    assert "--attempts 5" in last


def test_the_time_left_is_of_the_whole_command() -> None:
    """40 executions: two policies of 10 each and 20 runs of scripts; a round has 5."""
    told: list[tuple[str, int, int, float | None]] = []
    now = iter([100.0, 101.0, 110.0, 120.0, 120.0, 500.0, 505.0, 510.0, 530.0]).__next__
    work = Work(lambda *what: told.append(what), 40, enough=5, clock=now)
    with work.phase("one", 10) as progress:
        progress(1, 10)  # after 1 s: too early to tell
        progress(5, 10)  # 2 s each, 35 left
        progress(10, 10)
    with work.phase("other", 10) as progress:  # loading the other policy, 380 s, is in no pace
        progress(1, 10)  # still by the pace of the first, 2 s each, 29 left
        progress(5, 10)  # 2 s each, 25 left
    assert [eta for *_, eta in told] == [None, 70.0, 60.0, 58.0, 50.0]
    assert told[-1][:3] == ("other", 5, 10)
    assert (work.finished, work.seconds) == (20, 50.0)


def test_the_curve_is_drawn(result: dict[str, Any], tmp_path: Path) -> None:
    draw(result, tmp_path / "curve.svg")
    picture = (tmp_path / "curve.svg").read_text()
    assert picture.startswith("<svg")
    assert "start, lower end" in picture
    draw({**result, "against": {**result["against"], "subject": result["subject"]}}, tmp_path / "twice.svg")
    assert f"{Path(result['subject']).name}, again" in (tmp_path / "twice.svg").read_text(), "two curves, two names"
    with pytest.raises(WorkbenchError, match="cannot be written"):
        draw(result, tmp_path / "no folder" / "curve.svg")
    figure = budget_curve({"a": result["curve"], "b": result["against"]["curve"]}, "human_rank")
    assert list(figure.data[0].y) == [row["human_rank"] for row in result["curve"]]
    assert len({(trace.line.dash, trace.marker.symbol) for trace in figure.data}) == len(figure.data) == 6


def test_a_run_without_a_step_is_told(config: Config, tmp_path: Path) -> None:
    from workbench.run import Run

    Run.create(tmp_path / "run", config, {}).close()
    with pytest.raises(WorkbenchError, match="has no checkpoint yet"):
        find_subject(str(tmp_path / "run"))
