from __future__ import annotations

import os
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from workbench.views.progress import duration, follow, has_front_end, own_command, progress_line, resume_command

OWN = Path(sys.executable).parent


class Control:
    """What `follow` asks of a control."""

    status = "running"

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self.values: dict[str, Any] = {"phase": "acting", "step": 0, "steps": 4, "done": 3, "total": 8}

    def progress(self) -> dict[str, Any]:
        return self.values

    def stop(self) -> None:
        self.stopped.set()


class Training:
    """A training that ends after some time, or when asked to stop."""

    def __init__(self, seconds: float, error: Exception | None = None) -> None:
        self.control, self.error = Control(), error
        self.end = time.monotonic() + seconds

    @property
    def done(self) -> bool:
        return self.control.stopped.is_set() or time.monotonic() > self.end

    def wait(self, poll_s: float = 0.2) -> str:
        if self.error:
            raise self.error
        return "summary"


def test_lines() -> None:
    values = {"phase": "acting", "step": 12, "steps": 50, "done": 14, "total": 32, "reward": 0.412, "eta_s": 125.2}
    assert progress_line(values) == "step 12/50 · acting 14/32 · reward 0.41 · ETA 2 min 05 s"
    assert progress_line({}, "idle") == "idle"
    assert progress_line({"phase": "updating", "warning": "cut"}, "paused") == "paused · updating · warning: cut"
    assert (
        progress_line({"phase": "training", "step": 1, "steps": 2, "reward": None, "warning": None})
        == "step 1/2 · training"
    )


def test_the_step_going_on_is_shown_and_none_before_the_first() -> None:
    assert progress_line({"phase": "loading the policy", "step": 0, "steps": 40}) == "loading the policy"
    acting = {"phase": "acting", "step": 0, "running": 1, "steps": 40, "done": 0, "total": 32}
    assert progress_line(acting) == "step 1/40 · acting 0/32"
    assert progress_line({"phase": "training", "step": 3, "running": None, "steps": 40}, "paused") == (
        "paused · step 3/40 · training"
    )


def test_a_warning_is_written_when_it_is_new() -> None:
    training = Training(0.7)
    training.control.values["warning"] = "all groups are flat"
    lines: list[str] = []
    follow(training, every_s=0.1, write=lines.append)
    assert len(lines) >= 3
    assert [line.count("warning") for line in lines] == [1] + [0] * (len(lines) - 1)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.6, "1 min 00 s"), (75, "1 min 15 s"), (7260, "2 h 01 min")]
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_follow_writes_at_least_as_often_as_asked_and_returns_the_summary() -> None:
    times: list[float] = []
    started = time.monotonic()
    assert follow(Training(1.3), every_s=0.3, write=lambda _: times.append(time.monotonic())) == "summary"
    gaps = [b - a for a, b in zip([started, *times], times, strict=False)]
    assert max(gaps) < 0.6
    assert len(times) >= 3


def test_follow_raises_the_error_of_the_thread() -> None:
    with pytest.raises(ValueError, match="broken"):
        follow(Training(0.1, ValueError("broken")), every_s=0.1, write=lambda _: None)


def test_ctrl_c_stops_in_order_and_says_how_to_go_on() -> None:
    training = Training(30)
    lines: list[str] = []

    def write(line: str) -> None:
        lines.append(line)
        if len(lines) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        follow(training, every_s=0.1, write=write)
    assert training.control.stopped.is_set()
    assert any("stopping" in line for line in lines)


def test_no_front_end_outside_a_kernel() -> None:
    assert not has_front_end()


@pytest.mark.parametrize("path", ["", str(OWN)])
def test_the_command_to_go_on_can_be_typed_where_one_stands(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "my runs" / "one"
    run.mkdir(parents=True)
    monkeypatch.setenv("PATH", f"{path}:/usr/bin:/bin")
    for folder, argument in ((tmp_path, "'my runs/one'"), (run, shlex.quote(str(run.parent / "other")))):
        monkeypatch.chdir(folder)
        command = resume_command(run if folder == tmp_path else run.parent / "other")
        assert command == f"{own_command()} resume {argument}"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
        assert "is no run" in done.stderr


def test_another_workbench_on_the_path_is_not_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "workbench"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.chdir(OWN.parent.parent)
    assert own_command() == str(OWN.relative_to(Path.cwd()) / "workbench")
    other.unlink()
    other.symlink_to(OWN / "workbench")
    assert own_command() == "workbench"
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    other.unlink()
    assert own_command() == f"{tmp_path}/python -m workbench"
