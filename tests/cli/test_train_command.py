"""The command's side of a training: progress, signals, exit status. A small loop writes a real run folder."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import pty
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from workbench.cli import train
from workbench.config import make_config
from workbench.run import Run
from workbench.views.progress import resume_command

LOOP = """
import sys, time, types
from workbench.cli import train
from workbench.config import make_config
from workbench.run import Run

train.EVERY_S = {every}
train.GRACE_S = {grace}
train.finish = lambda path, summary: train.print_json(summary)

class Summary:
    def as_dict(self):
        return {{"run": "x", "steps": {steps}}}

def train_in(run, control):
    try:
        for step in range(1, {steps} + 1):
            control.boundary(step)
            time.sleep({seconds})
            {body}
            run.commit(step, metrics={{"m": step, "seconds": {told}}})
            run.save_checkpoint(step, lambda folder: (folder / "w").write_text("w"))
            control.report(phase="training", step=step, reward=0.5, valid_action_rate=0.25, eta_s=60)
        return Summary()
    finally:
        run.close()

trainer = types.ModuleType("workbench.learning.trainer")  # the real one takes seconds to import
trainer.Summary, trainer.train_in = Summary, train_in
sys.modules[trainer.__name__] = trainer
from workbench.learning.runner import new_training

sys.exit(train.follow(new_training(make_config(steps={steps}), sys.argv[1])))
"""


def start(
    path: Path,
    *,
    steps: int = 1000,
    seconds: float = 0.05,
    grace: float = 20.0,
    every: float = 5.0,
    told: float = 0.05,
    body: str = "pass",
    stderr: int = subprocess.PIPE,
) -> subprocess.Popen[str]:
    code = textwrap.dedent(LOOP).format(steps=steps, seconds=seconds, grace=grace, every=every, told=told, body=body)
    return subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env={**os.environ, "TERM": "xterm"},
    )


def wait_for_step(path: Path, step: int) -> None:
    deadline = time.monotonic() + 30
    while not (path / "latest").exists() or int((path / "latest").read_text() or 0) < step:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_whole_run_ends_with_its_summary(tmp_path: Path) -> None:
    process = start(tmp_path / "run", steps=3, seconds=0.01)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert json.loads(out.splitlines()[-1]) == {"run": "x", "steps": 3}
    assert re.search(r"step 3/3 · training · reward 0\.50 · valid 0\.25 · ETA (1 min 00|5\d) s", err)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_after_the_step_and_names_the_command(tmp_path: Path, number: signal.Signals) -> None:
    path = tmp_path / "run"
    process = start(path)
    wait_for_step(path, 2)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err
    assert out == ""
    assert f"workbench resume {path}" in err
    assert "Traceback" not in err
    with Run.open(path) as run:
        latest = run.latest_checkpoint()
        assert latest is not None
        assert latest[0] == run.last_step() >= 2


@pytest.mark.parametrize(("grace", "signals"), [(0.3, [signal.SIGTERM]), (20.0, [signal.SIGINT, signal.SIGINT])])
def test_a_step_that_takes_long_is_left(tmp_path: Path, grace: float, signals: list[signal.Signals]) -> None:
    path = tmp_path / "run"
    process = start(path, grace=grace, body="step > 2 and time.sleep(60)")
    wait_for_step(path, 2)
    for number in signals:
        time.sleep(0.3)
        process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 128 + signals[0], err
    assert "again: at once" in err
    assert "stopped at once, what came after the checkpoint of step 2 is run again" in err
    assert f"go on with: {resume_command(path)}" in err
    with Run.open(path) as run:
        assert run.last_step() == 2


def test_before_the_first_checkpoint_nothing_is_said_of_one(tmp_path: Path) -> None:
    path = tmp_path / "run"
    process = start(path, body="open(sys.argv[1] + '/begun', 'w').close(); time.sleep(60)")
    deadline = time.monotonic() + 30
    while not (path / "begun").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130, err
    assert "stopped at once, before the first checkpoint, so that it begins anew with step 1; go on with: " in err
    assert "run again" not in err


def test_one_interrupt_loses_nothing_however_long_the_step_takes(tmp_path: Path) -> None:
    path = tmp_path / "run"
    process = start(path, grace=0.1, told=75, body="step > 2 and time.sleep(1.5)")
    wait_for_step(path, 2)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130, err
    assert "stopping after the step in flight (the last one took 1 min 15 s); again: at once" in err
    with Run.open(path) as run:
        latest = run.latest_checkpoint()
        assert latest is not None
        assert latest[0] == run.last_step() == 3


def test_the_grace_after_a_sigterm_is_that_of_three_steps() -> None:
    assert train._grace_s(signal.SIGTERM, 60) == 180
    assert train._grace_s(signal.SIGTERM, 1) == train.GRACE_S
    assert train._grace_s(signal.SIGINT, 1) == math.inf


def test_a_report_that_cannot_be_written_does_not_hide_the_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Run.create(tmp_path / "run", make_config(), {}) as run:
        (run.path / "report.html").mkdir()
        train.finish(run.path, {"run": str(run.path), "report": str(run.path / "report.html"), "steps": 3})
    out, err = capsys.readouterr()
    assert json.loads(out) == {"run": str(run.path), "report": None, "steps": 3}
    assert f"workbench report {run.path} --out FILE.html" in err


def test_a_longer_schedule_is_told(tmp_path: Path) -> None:
    config = make_config(steps=40, rho_end=2.0)
    with Run.create(tmp_path / "run", config, {}) as run:
        assert train.schedule_note(run, make_config(steps=80)) == ""
        run.commit(40, metrics={"learning_rate_base": 1e-3, "learning_rate": 1e-4, "rho": 2.0})
        run.save_checkpoint(40, lambda folder: (folder / "w").write_text("w"))
        assert train.schedule_note(run, config) == "", "no step is left"
        assert train.schedule_note(run, make_config(steps=80, rho_end=2.0)) == (
            "with 80 steps the learning rate of step 41 is 0.000978 and rho 1.71 (in step 40 they were 0.0001 and 2)"
        )


def test_an_error_in_the_thread_is_raised_and_the_run_is_kept(tmp_path: Path) -> None:
    process = start(tmp_path / "run", body="step > 1 and 1 / 0")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "ZeroDivisionError" in err
    assert f"go on with: {resume_command(tmp_path / 'run')}" in err
    assert Run(tmp_path / "run").last_step() == 1


def test_a_run_that_fails_before_its_first_step_leaves_nothing(tmp_path: Path) -> None:
    process = start(tmp_path / "run", body="1 / 0")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "resume" not in err
    assert not (tmp_path / "run").exists()


def test_such_a_run_leaves_the_empty_folder_that_it_was_given(tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    for folder in ("given", "made"):
        settings = ["--set", f"policy={tmp_path}", "--run", str(tmp_path / folder)]
        done = subprocess.run(
            [sys.executable, "-m", "workbench", "train", *settings], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 1
        assert f"'{tmp_path}'" in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.rglob("*")] == ["given"]


def test_what_cannot_be_removed_does_not_hide_the_cause(tmp_path: Path) -> None:
    """A file that some other program put there meanwhile is gone before it can be removed."""
    code = "import shutil; shutil.rmtree = lambda *_, **__: open('/no/such/file'); 1 / 0"
    process = start(tmp_path / "run", body=code)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert err.splitlines()[-1] == "ZeroDivisionError: division by zero"


def test_a_terminal_gets_its_cursor_back_when_the_step_is_dropped(tmp_path: Path) -> None:
    path, (ours, theirs) = tmp_path / "run", pty.openpty()
    process = start(path, body="step > 2 and time.sleep(60)", stderr=theirs)
    os.close(theirs)
    wait_for_step(path, 2)
    for _ in range(2):
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
    shown = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while part := os.read(ours, 4096):
            shown += part
    os.close(ours)
    process.communicate(timeout=20)
    assert process.returncode == 130
    hide, cursor = b"\x1b[?25l", b"\x1b[?25h"
    assert hide in shown
    assert shown.rindex(cursor) > shown.rindex(hide)


def test_a_second_start_of_a_run_names_the_first(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with Run.create(path, make_config(), {}):
        command = [sys.executable, "-m", "workbench", "resume", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 1
        assert f"is being written by process {os.getpid()}" in done.stderr


def test_progress_is_told_in_short_intervals_also_within_a_step(tmp_path: Path) -> None:
    process = start(tmp_path / "run", steps=2, seconds=2.5, every=0.5)
    with process:
        assert process.stderr is not None
        lines = [(time.monotonic(), line) for line in process.stderr]
    assert process.returncode == 0
    assert "ETA" in lines[-1][1]
    assert len(lines) > 8
    assert max(after - before for (before, _), (after, _) in itertools.pairwise(lines)) < 1.0
