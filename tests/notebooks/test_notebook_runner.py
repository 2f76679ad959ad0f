"""The papermill wrapper on small notebooks, with real kernels."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from workbench.cli.notebook import _Call, find, run, shorten, typed_parameters
from workbench.config import ROOT
from workbench.types import WorkbenchError

PARAMETERS = 'steps: int = 3\nrate: float = 0.5\nname: str = "a"\nfast: bool = False\npreset: str = "default"'
CHECK = (
    "from workbench.views.parameters import check_parameters\n"
    'check_parameters(globals(), presets={"smoke": {"steps": 1, "rate": 0.1}})'
)


def write(path: Path, *cells: str, parameters: str = PARAMETERS) -> Path:
    book = new_notebook(metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}})
    book.cells = [new_markdown_cell("# Test"), new_code_cell(parameters, metadata={"tags": ["parameters"]})]
    book.cells += [new_code_cell(source) for source in cells]
    nbformat.write(book, path)
    return path


def outputs(path: Path) -> str:
    book = nbformat.read(path, as_version=4)
    return "".join(output.get("text", "") for cell in book.cells for output in cell.get("outputs", ()))


@pytest.fixture
def book(tmp_path: Path) -> Path:
    return write(tmp_path / "book.ipynb", CHECK, "print(f'steps={steps} rate={rate!r} name={name} fast={fast}')")


def test_parameters_arrive_typed_and_output_is_passed_on(book: Path, tmp_path: Path) -> None:
    terminal = io.StringIO()
    given = {"steps": "7", "rate": "2", "name": "5", "fast": "true"}
    target = run(str(book), given, tmp_path / "out", terminal=terminal)
    assert target == tmp_path / "out" / "book.ipynb"
    assert "steps=7 rate=2.0 name=5 fast=True" in outputs(target)
    assert "steps=7 rate=2.0" in terminal.getvalue()


def test_half_a_notebook_does_not_hide_the_error_that_left_it(
    book: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(call: Any) -> None:
        call.target.write_text('{"cells": [')
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(_Call, "execute", full)
    with pytest.raises(OSError, match="No space left"):
        run(str(book), {}, tmp_path / "out", terminal=io.StringIO())


def test_preset_fills_only_what_was_not_given(book: Path, tmp_path: Path) -> None:
    target = run(str(book), {"preset": "smoke", "steps": "3"}, tmp_path / "out", terminal=io.StringIO())
    assert "steps=3 rate=0.1" in outputs(target)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"stepz": "5"}, "'stepz' is no parameter of book.ipynb: did you mean 'steps'?"),
        ({"steps": "five"}, "steps='five' is not accepted: expected a whole number"),
        ({"steps": "2.5"}, "steps='2.5' is not accepted: expected a whole number"),
        ({"rate": "fast"}, "rate='fast' is not accepted: expected a number"),
        ({"fast": "maybe"}, "fast='maybe' is not accepted: expected true or false"),
    ],
)
def test_bad_parameter_is_one_sentence_before_anything_runs(book: Path, given: dict[str, str], sentence: str) -> None:
    with pytest.raises(WorkbenchError, match=sentence.replace("?", r"\?").replace("'", ".")):
        typed_parameters(book, given)


def test_bad_parameter_leaves_no_output(book: Path, tmp_path: Path) -> None:
    with pytest.raises(WorkbenchError):
        run(str(book), {"stepz": "5"}, tmp_path / "out", terminal=io.StringIO())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("out", ["folder", "link"])
def test_a_notebook_is_never_its_own_output(tmp_path: Path, out: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    book = write(tmp_path / "folder" / "book.ipynb", "print('mine')")
    before = book.read_bytes()
    with pytest.raises(WorkbenchError, match=r"is the folder of book\.ipynb itself: choose another"):
        run(str(book), {}, tmp_path / out, terminal=io.StringIO())
    assert book.read_bytes() == before


@pytest.mark.parametrize("given", [["-p", "steps", "five"], ["-p", "preset", "smok"]])
def test_plain_papermill_fails_too(book: Path, tmp_path: Path, given: list[str]) -> None:
    command = [sys.executable, "-m", "papermill", str(book), str(tmp_path / "plain.ipynb"), "-k", "python3", *given]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=90, cwd=tmp_path)
    assert ended.returncode != 0
    assert "WorkbenchError" in ended.stderr


def test_unknown_notebook_names_the_near_one(tmp_path: Path) -> None:
    with pytest.raises(WorkbenchError, match="did you mean '04_training'"):
        find("04_trainin")
    with pytest.raises(WorkbenchError, match="is no file"):
        find(str(tmp_path / "none.ipynb"))
    assert find("04") == find("04_training") == ROOT / "notebooks" / "04_training.ipynb"


def test_text_that_is_no_notebook(tmp_path: Path) -> None:
    (tmp_path / "odd.ipynb").write_text("not json")
    with pytest.raises(WorkbenchError, match="cannot be read as a notebook"):
        run(str(tmp_path / "odd.ipynb"), {}, tmp_path / "out", terminal=io.StringIO())


def test_error_in_a_cell_keeps_the_cells_before(tmp_path: Path) -> None:
    book = write(tmp_path / "book.ipynb", "print('first')", "raise ValueError('broken <b>')", "print('never')")
    with pytest.raises(WorkbenchError, match="failed with ValueError: broken"):
        run(str(book), {}, tmp_path / "out", terminal=io.StringIO())
    text = outputs(tmp_path / "out" / "book.ipynb")
    assert "first" in text
    assert "never" not in text


def test_killed_kernel_ends_soon_with_partial_output(tmp_path: Path) -> None:
    kill = "import os, signal, time\nprint('before', flush=True)\ntime.sleep(1)\nos.kill(os.getpid(), signal.SIGKILL)"
    book = write(tmp_path / "book.ipynb", "print('first')", kill, "print('never')")
    started = time.monotonic()
    with pytest.raises(WorkbenchError, match=r"The kernel of book\.ipynb died in cell 3"):
        run(str(book), {}, tmp_path / "out", terminal=io.StringIO())
    assert time.monotonic() - started < 60
    text = outputs(tmp_path / "out" / "book.ipynb")
    assert "first" in text
    assert "never" not in text


def test_signs_of_life_in_a_silent_cell(tmp_path: Path) -> None:
    terminal = io.StringIO()
    run(str(write(tmp_path / "book.ipynb", "import time; time.sleep(7)")), {}, tmp_path / "out", terminal=terminal)
    assert "… cell 2 running" in terminal.getvalue()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_reaches_the_kernel(tmp_path: Path, number: signal.Signals) -> None:
    """The cell sees KeyboardInterrupt and can end in order; the executed notebook is kept; the status is 128 + n."""
    cell = (
        "import time\ntry:\n    print('waiting', flush=True)\n    time.sleep(60)\n"
        "except KeyboardInterrupt:\n    print('stopped in order', flush=True)\n    raise"
    )
    book = write(tmp_path / "book.ipynb", cell, "print('never')")
    process = subprocess.Popen(
        [sys.executable, "-m", "workbench", "notebook", str(book), "--out", str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if "waiting" in line:
            break
    process.send_signal(number)
    rest, errors = process.communicate(timeout=45)
    assert process.returncode == 128 + number, errors
    assert "stopped in order" in rest
    assert "Interrupted" in errors
    assert "stopped in order" in outputs(tmp_path / "out" / "book.ipynb")


def test_widget_state_and_floods_are_left_out(tmp_path: Path) -> None:
    cells = (
        "import ipywidgets; ipywidgets.HTML('x' * 100_000)",
        "for line in range(3000): print('line', line)",
    )
    target = run(str(write(tmp_path / "book.ipynb", *cells)), {}, tmp_path / "out", terminal=io.StringIO())
    book = json.loads(target.read_text())
    assert "widgets" not in book["metadata"]
    assert target.stat().st_size < 60_000
    text = outputs(target)
    assert text.count("\n") <= 500
    assert "line 2999" in text
    assert "lines left out" in text


def test_shorten_keeps_head_and_tail() -> None:
    text = "".join(f"{number}\n" for number in range(10))
    assert shorten(text, 10) == text
    assert shorten(text, 4) == "0\n1\n… 6 lines left out …\n8\n9\n"


def test_runs_outside_the_main_thread(book: Path, tmp_path: Path) -> None:
    """Signals cannot be watched there, the rest works."""
    results: list[Path] = []
    thread = threading.Thread(
        target=lambda: results.append(run(str(book), {}, tmp_path / "out", terminal=io.StringIO()))
    )
    thread.start()
    thread.join(60)
    assert results
