"""Runs of the real command, ended at any moment and gone on with, against one that was left alone: bit for bit."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from workbench.run import Run

STEPS = 8
SETTINGS = {
    "steps": STEPS,
    "tasks": "used-cars,delivery-time,loan-missing",
    "groups": 2,
    "group_size": 4,
    "max_prompt_tokens": 512,
    "max_completion_tokens": 4,
    "eval_drafts": 0,
    "tau": 1,
    "learning_rate": 0.003,
    "device": "cpu",
    "dtype": "float32",
    "threads": 2,
    "kl_coef": 0.01,
}

LAUNCH = """
import json, os, signal, sys
from workbench.control import Control
from workbench.learning import snapshots
from workbench.run import Run

snapshots.LEAST = 10  # the curriculum's: in every step or two

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def nth(function, number, *, first):
    calls = 0
    def counting(self, *args, **keywords):
        nonlocal calls
        calls += 1
        if calls == number and first:
            die()
        result = function(self, *args, **keywords)
        if calls == number:
            die()
        return result
    return counting

moment, number, turn = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
if turn:
    boundary = Control.boundary
    def turning(self, step):
        if step == turn["step"]:
            self.request(turn["knob"], turn["value"], source="panel")
        return boundary(self, step)
    Control.boundary = turning
if moment == "after a result is stored":
    Run.store_result = nth(Run.store_result, number, first=False)
elif moment == "before the commit":
    Run.commit = nth(Run.commit, number, first=True)
elif moment == "between commit and checkpoint":
    Run.commit = nth(Run.commit, number, first=False)
elif moment == "within the checkpoint":
    real = Run.save_checkpoint
    def save(self, step, write):
        real(self, step, write if step < number else lambda folder: (write(folder), die()))
    Run.save_checkpoint = save
sys.argv = ["workbench", *sys.argv[4:]]
from workbench.cli.main import main
main()
"""
"""The command, ended with SIGKILL by itself at a moment that a signal from outside would not meet reliably, and with a
knob turned before a given step."""

Turn = dict[str, Any] | None


def command(*words: str, moment: str = "", number: int = 0, turn: Turn = None) -> list[str]:
    return [sys.executable, "-c", LAUNCH, moment, str(number), json.dumps(turn), *words]


def train(
    run: Path, policy: Path, *, moment: str = "", number: int = 0, turn: Turn = None, **settings: Any
) -> list[str]:
    pairs = [f"--set={name}={value}" for name, value in {**SETTINGS, "policy": policy, **settings}.items()]
    return command("train", "--run", str(run), *pairs, moment=moment, number=number, turn=turn)


def finish(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, timeout=170)


def wait_for_step(run: Path, step: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not (run / "latest").exists() or int((run / "latest").read_text() or 0) < step:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.01)


# --- comparing


def assert_same(one: Path, other: Path, steps: int = STEPS) -> None:
    """Everything that two runs hold, times left out, is equal to the last bit."""
    a, b = Run(one), Run(other)
    pd.testing.assert_frame_equal(_timeless(a.metrics()), _timeless(b.metrics()), check_exact=True)
    pd.testing.assert_frame_equal(_timeless(a.turns(tokens=True)), _timeless(b.turns(tokens=True)), check_exact=True)
    pd.testing.assert_frame_equal(a.states(), b.states(), check_exact=True)
    assert list(a.curriculum_events()) == list(b.curriculum_events())
    pd.testing.assert_frame_equal(_timeless(a.knob_events()), _timeless(b.knob_events()), check_exact=True)
    first, second = a.latest_checkpoint(), b.latest_checkpoint()
    assert first is not None
    assert second is not None
    assert first[0] == second[0] == steps
    names = sorted(path.relative_to(first[1]) for path in first[1].rglob("*") if path.is_file())
    assert names == sorted(path.relative_to(second[1]) for path in second[1].rglob("*") if path.is_file())
    assert {".safetensors", ".pt", ".json"} <= {name.suffix for name in names}
    for name in names:
        if name.suffix == ".pt":
            _assert_equal(torch.load(first[1] / name), torch.load(second[1] / name))
        elif name.name == "state.json":
            _assert_equal(_state(first[1] / name), _state(second[1] / name))
        elif name.name == "adapter_config.json":  # names of layers, in the order of a set
            assert _sorted(first[1] / name) == _sorted(second[1] / name)
        else:
            assert (first[1] / name).read_bytes() == (second[1] / name).read_bytes(), name


def _state(path: Path) -> dict[str, Any]:
    """All of it but the place in the process-wide generator of `random`: a library draws from it once per process, and
    nothing of ours does."""
    state = json.loads(path.read_text())
    state["python_rng"][1].pop()
    return state


def _sorted(path: Path) -> dict[str, Any]:
    return {k: sorted(v) if isinstance(v, list) else v for k, v in json.loads(path.read_text()).items()}


def _timeless(frame: pd.DataFrame) -> pd.DataFrame:
    times = [
        name for name in frame if name in ("at", "tokens_per_s", "cpu_s", "wall_s", "cpu_s_mean") or "seconds" in name
    ]
    kept = frame.drop(columns=times)
    return kept[sorted(kept)]  # the order of a metric's column is that of its first mention


def _assert_equal(one: Any, other: Any) -> None:
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            _assert_equal(one[name], other[name])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            _assert_equal(a, b)
    else:
        assert one == other


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, policy_folder: Path) -> Path:
    """A run of `STEPS` steps that nothing disturbed."""
    run = tmp_path_factory.mktemp("whole") / "run"
    done = finish(train(run, policy_folder))
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["steps"] == STEPS
    assert summary["run"] == str(run)
    return run


def test_a_run_records_what_happened(whole: Path) -> None:
    """The run that the others are compared with is worth comparing with: it executes, differs and learns."""
    run = Run(whole)
    metrics, turns = run.metrics(), run.turns()
    assert len(turns) == STEPS * 2 * 4
    assert metrics["executions"].sum() == turns.dropna(subset=["code"]).drop_duplicates(["task", "code"]).shape[0] > 10
    assert metrics["groups_used"].sum() >= STEPS / 2
    assert (metrics["grad_norm"].dropna() > 0).all()
    assert (metrics["skipped_updates"] == 0).all()
    assert metrics["version"].iloc[-1] == (metrics["samples"] > 0).sum()
    texts = turns.groupby("group_id")["text"].nunique()
    assert texts.mean() > 2, "members of a group have seeds of their own"
    assert run.turns(1)["text"].tolist() != run.turns(2)["text"].tolist()
    assert {"debug", "improve"} & set(run.states()["kind"])
    assert run.environment["threads"] == 2


@pytest.mark.timeout(600)
def test_killed_interrupted_and_resumed_it_is_the_same_run(whole: Path, policy_folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    killed = finish(train(run, policy_folder, moment="after a result is stored", number=14))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    process = subprocess.Popen(
        [sys.executable, "-m", "workbench", "resume", str(run)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for_step(run, 3, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out == ""
    assert f"workbench resume {run}" in err
    assert "Traceback" not in err
    done = Run(run).last_step()
    assert 3 <= done < STEPS
    killed = finish(command("resume", str(run), moment="between commit and checkpoint", number=1))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert Run(run).last_step() == done + 1
    latest = Run(run).latest_checkpoint()
    assert latest is not None
    assert latest[0] == done
    assert any(step <= done for step, _ in Run(run).curriculum_snapshots()), "it goes on from a snapshot"
    resumed = finish(command("resume", str(run)))
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout.splitlines()[-1])["steps"] == STEPS
    assert "not exact" not in resumed.stderr
    assert_same(whole, run)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before the commit", "within the checkpoint"])
@pytest.mark.parametrize("number", [1, 4])
def test_killed_at_a_given_moment(whole: Path, policy_folder: Path, tmp_path: Path, moment: str, number: int) -> None:
    run = tmp_path / "run"
    killed = finish(train(run, policy_folder, moment=moment, number=number))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    resumed = finish(command("resume", str(run)))
    assert resumed.returncode == 0, resumed.stderr
    assert_same(whole, run)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("moment", "number", "settings"),
    [
        ("before the commit", 6, {}),
        ("between commit and checkpoint", 5, {"adapter": "lora", "checkpoint_every_s": 1.0}),
        ("before the commit", 6, {"kl_coef": 0.0, "max_completion_tokens": 1}),  # all groups flat: no step updates
        ("before the commit", 6, {"flat_groups": "redraw", "group_size": 2, "reward": "ladder:0.5,gain:0.5"}),
    ],
)
def test_ten_steps_are_five_a_kill_and_five_more(
    policy_folder: Path, tmp_path: Path, moment: str, number: int, settings: dict[str, Any]
) -> None:
    """Whatever is trained, however often it is saved, and with a knob turned that no checkpoint has seen."""
    one, other = tmp_path / "one", tmp_path / "other"
    turn = {"step": 5, "knob": "learning_rate", "value": 0.02}
    done = finish(train(one, policy_folder, steps=10, turn=turn, **settings))
    assert done.returncode == 0, done.stderr
    killed = finish(train(other, policy_folder, steps=10, turn=turn, moment=moment, number=number, **settings))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    left = Run(other)
    latest = left.latest_checkpoint()
    assert left.last_step() == 5
    assert (latest is not None and latest[0] == 5) == ("adapter" not in settings)
    resumed = finish(command("resume", str(other)))
    assert resumed.returncode == 0, resumed.stderr
    assert left.metrics()["learning_rate_base"].tolist() == [0.003] * 4 + [0.02] * 6
    assert_same(one, other, 10)


@pytest.mark.slow
def test_a_run_made_longer_is_longer_after_a_kill(policy_folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert finish(train(run, policy_folder, steps=1)).returncode == 0
    killed = finish(command("resume", str(run), "--steps", "3", moment="before the commit", number=1))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    resumed = finish(command("resume", str(run)))
    assert json.loads(resumed.stdout.splitlines()[-1])["steps"] == 3, resumed.stderr


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.timeout(600)
def test_killed_again_and_again_at_random(whole: Path, policy_folder: Path, tmp_path: Path, seed: int) -> None:
    generator, run = random.Random(seed), tmp_path / "run"
    words = train(run, policy_folder)
    for _ in range(4):
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        before = Run(run).last_step() if (run / "config.json").exists() else 0
        if before == STEPS:
            break
        wait_for_step(run, before + 1, process)
        time.sleep(generator.uniform(0, 0.6))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        words = command("resume", str(run))
    assert finish(command("resume", str(run))).returncode == 0
    assert_same(whole, run)


@pytest.mark.slow
def test_sigterm_leaves_a_run_that_can_go_on(whole: Path, policy_folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = subprocess.Popen(train(run, policy_folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for_step(run, 2, process)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert f"workbench resume {run}" in err
    assert finish(command("resume", str(run))).returncode == 0
    assert_same(whole, run)
