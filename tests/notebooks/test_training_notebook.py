"""Notebook 04 in batch, for real: the embedded policy, the embedded tasks, a few small steps."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

from workbench.cli.notebook import find, run
from workbench.run import Run
from workbench.types import WorkbenchError
from workbench.views.progress import resume_command

pytestmark = pytest.mark.timeout(300)

FIELDS = "run report steps seconds valid_before valid_after reward_before reward_after seed".split()


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """(executed notebook, run folder, what the terminal showed)."""
    folder = tmp_path_factory.mktemp("smoke")
    terminal = io.StringIO()
    given = {"preset": "smoke", "run_dir": str(folder / "run"), "seed": "3"}
    return run("04_training", given, folder / "out", terminal=terminal), folder / "run", terminal.getvalue()


@pytest.fixture(scope="module")
def book(executed: tuple[Path, Path, str]) -> Any:
    return nbformat.read(executed[0], as_version=4)


def test_it_ends_with_the_json_line(executed: tuple[Path, Path, str]) -> None:
    _, folder, terminal = executed
    summary = json.loads(terminal.strip().splitlines()[-1])
    assert list(summary) == FIELDS
    assert summary["steps"] == 3
    assert summary["seed"] == 3
    assert Path(summary["run"]) == folder
    assert Path(summary["report"]).read_text().startswith("<!doctype html>")
    assert 0 <= summary["valid_before"] <= 1
    assert Run(folder).last_step() == 3


def test_progress_is_shown(executed: tuple[Path, Path, str]) -> None:
    lines = executed[2].splitlines()
    assert any(line.startswith("step 3/3") for line in lines)
    assert any("reward" in line and "valid" in line and "ETA" in line for line in lines)


def test_it_is_small_without_errors_and_without_widgets(executed: tuple[Path, Path, str], book: Any) -> None:
    assert executed[0].stat().st_size < 1_000_000
    assert "widgets" not in book.metadata
    for cell in book.cells:
        for output in cell.get("outputs", ()):
            assert output.output_type != "error"
            assert "application/vnd.jupyter.widget-view+json" not in output.get("data", {})
            if output.output_type == "stream":
                assert len(output.text.splitlines()) <= 500


def test_every_figure_is_visible_without_a_kernel(book: Any) -> None:
    figures = [
        output.data
        for cell in book.cells
        for output in cell.get("outputs", ())
        if "application/vnd.plotly.v1+json" in output.get("data", {})
    ]
    assert len(figures) == 6
    for data in figures:
        assert "data:image/svg+xml;base64," in data["text/html"]
        assert data["image/svg+xml"].startswith("<svg")


def test_it_converts_to_html_that_needs_no_network_for_its_figures(executed: tuple[Path, Path, str]) -> None:
    from nbconvert import HTMLExporter

    page, _ = HTMLExporter(template_name="lab").from_filename(str(executed[0]))
    body = re.sub(r"<style.*?</style>", "", page, flags=re.DOTALL)  # the template's icons
    assert body.count("data:image/svg+xml;base64,") == 6
    assert "not able to be represented" not in page


def test_a_second_call_goes_on_with_the_run(executed: tuple[Path, Path, str], tmp_path: Path) -> None:
    terminal = io.StringIO()
    given = {"preset": "smoke", "run_dir": str(executed[1]), "seed": "3", "steps": "4"}
    run("04_training", given, tmp_path, terminal=terminal)
    assert "3 steps done" in terminal.getvalue()
    assert json.loads(terminal.getvalue().strip().splitlines()[-1])["steps"] == 4
    events = Run(executed[1]).knob_events()
    assert list(events["knob"]) == ["steps"]
    with pytest.raises(WorkbenchError, match="was started with seed=3, and 4 is asked for"):
        run("04_training", {**given, "seed": "4"}, tmp_path, terminal=io.StringIO())


def test_an_error_in_the_training_thread_ends_the_call(tmp_path: Path) -> None:
    """The policy is loaded in the thread, so a folder that is none is an error there."""
    given = {"preset": "smoke", "policy": str(tmp_path), "run_dir": str(tmp_path / "run")}
    with pytest.raises(WorkbenchError, match=r"failed with WorkbenchError: .*policy"):
        run("04_training", given, tmp_path / "out", terminal=io.StringIO())


def test_ctrl_c_leaves_a_run_that_can_go_on(tmp_path: Path) -> None:
    workbench = str(Path(sys.executable).parent / "workbench")
    command = [workbench, "notebook", "04", "--out", str(tmp_path / "out")]
    given = {"steps": 500, "groups": 1, "group_size": 2, "eval_drafts": 0, "run_dir": tmp_path / "run"}
    command += [word for name, value in given.items() for word in ("-p", name, str(value))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    for line in process.stdout:
        if re.match(r"step ([3-9]|\d\d+)/", line):
            break
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"Go on with: {resume_command(tmp_path / 'run')}" in rest
    assert "Interrupted" in errors
    with Run.open(tmp_path / "run") as run:
        assert run.last_step() >= 2
        assert run.latest_checkpoint()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["-p", "stepz", "5"], "did you mean 'steps'"),
        (["-p", "settings", "clip_hihg=0.3"], "did you mean 'clip_high'"),
        pytest.param(["-p", "steps", "-5"], "steps=-5 is not accepted", marks=pytest.mark.slow),
        pytest.param(["-p", "interactive", "maybe"], "'maybe' is no value of interactive", marks=pytest.mark.slow),
        pytest.param(["-p", "tasks", "no-such-task"], "no-such-task", marks=pytest.mark.slow),
    ],
)
def test_plain_papermill_stops_at_a_wrong_parameter(tmp_path: Path, given: list[str], sentence: str) -> None:
    command = [sys.executable, "-m", "papermill", str(find("04")), str(tmp_path / "out.ipynb"), *given]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert ended.returncode != 0
    assert sentence in ended.stderr
