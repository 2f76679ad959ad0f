"""The training thread: what it leaves of a run that never began, and how a process with one in it ends."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from workbench.config import Config, make_config
from workbench.learning import runner
from workbench.run import Run
from workbench.types import WorkbenchError

SETTINGS = {
    "tasks": "used-cars,delivery-time",
    "groups": 2,
    "group_size": 4,
    "max_prompt_tokens": 512,
    "max_completion_tokens": 4,
    "eval_drafts": 0,
    "device": "cpu",
}


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_current", None)


def fail(config: Config, path: Path | None) -> runner.Training:
    training = runner.start(config, path)
    with pytest.raises(WorkbenchError, match="policy"):
        training.wait(0.01)
    return training


def test_a_run_that_fails_before_its_first_step_leaves_its_name_free(tmp_path: Path) -> None:
    made, given = tmp_path / "made", tmp_path / "given"
    given.mkdir()
    for path in (made, given):
        for name in ("typo", "another"):  # other fixed settings than those of a run that stayed would be refused
            assert fail(make_config(SETTINGS, policy=f"./{name}"), path).removed
    assert [path.name for path in tmp_path.rglob("*")] == ["given"]


def test_a_run_that_is_gone_on_with_stays_whatever_happens(tmp_path: Path) -> None:
    config = make_config(SETTINGS, policy="./typo")
    Run.create(tmp_path / "run", config, {}).close()
    assert not fail(config, tmp_path / "run").removed
    assert Run(tmp_path / "run").last_step() == 0


def test_a_folder_that_a_kill_left_without_its_config_is_begun_anew(tmp_path: Path) -> None:
    config = make_config(SETTINGS, policy="./typo")
    Run.create(tmp_path / "run", config, {}).close()
    (tmp_path / "run" / "config.json").unlink()
    assert fail(config, tmp_path / "run").origin == "given"


SCRIPT = """
import json, sys, time
from workbench.config import make_config
from workbench.learning.runner import start

training = start(make_config(json.loads(sys.argv[2])), sys.argv[1])
while not training.done:
    progress = training.control.progress()
    if progress["step"] >= 1 and progress["phase"] == "acting":
        print(progress["step"], flush=True)
        sys.exit(3)
    time.sleep(0.001)
"""


def test_a_script_that_ends_finishes_and_saves_the_step_in_flight(policy_folder: Path, tmp_path: Path) -> None:
    settings = json.dumps({**SETTINGS, "policy": str(policy_folder), "steps": 100_000, "threads": 1})
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "run"), settings], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    done = int(process.stdout.readline())
    ended = time.monotonic()
    assert process.wait(60) == 3
    assert time.monotonic() - ended < 20, "a step takes a second"
    process.stdout.close()
    run = Run(tmp_path / "run")
    latest = run.latest_checkpoint()
    assert latest is not None
    assert done < run.last_step() == latest[0] <= done + 2
