"""Notebook 04 in JupyterLab and Chromium, as a user has it: Run All, watch, turn a knob, reload, stop, go on."""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from workbench.config import ROOT
from workbench.run import Run

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]

POINTS = "[...document.querySelectorAll('.js-plotly-plot')].map(plot => (plot.data[0].x || []).length)"
FIRST_POINT_S = 45
SHOTS = ROOT / "out" / "screenshots"


def edit(source: Path, target: Path, **values: Any) -> None:
    """A copy of a notebook whose parameters cell has other defaults."""
    book = json.loads(source.read_text())
    (cell,) = (cell for cell in book["cells"] if "parameters" in cell["metadata"].get("tags", ()))
    text = "".join(cell["source"])
    for name, value in values.items():
        text, count = re.subn(rf"(?m)^({name}: [^=]+= )[^#\n]+", lambda found, v=value: f"{found[1]}{v!r}  ", text)
        assert count == 1, name
    cell["source"] = text
    target.write_text(json.dumps(book))


def wait(page: Any, condition: Any, seconds: float, what: str) -> float:
    started = time.monotonic()
    while time.monotonic() - started < seconds:
        if condition():
            return time.monotonic() - started
        page.wait_for_timeout(100)
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / "failed.png")
    raise AssertionError(f"{what}: not within {seconds} s")


def points(page: Any) -> int:
    return max(page.evaluate(POINTS), default=0)


def shot(panel: Any, name: str) -> None:
    """The panel, and what of the figure below it fits the window."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    panel.evaluate("panel => panel.scrollIntoView()")
    panel.page.screenshot(path=SHOTS / f"{name}.png")


def press(page: Any, panel: Any, knob: str, key: str) -> None:
    handle = panel.locator(f".wb-knob-{knob} .noUi-handle[role=slider]")
    handle.focus()
    page.keyboard.press(key)


def step_of(text: str) -> int:
    found = re.search(r"step (\d+)/", text)
    assert found, text
    return int(found[1])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


def test_a_user_watches_turns_a_knob_reloads_stops_and_goes_on(
    page: Any, lab: Any, opened: Any, all_cells: Any, folder: Path
) -> None:
    from playwright.sync_api import expect

    small = {"steps": 400, "groups": 2, "group_size": 4, "eval_drafts": 0, "run_dir": str(folder)}
    edit(ROOT / "notebooks" / "04_training.ipynb", lab.folder / "04_training.ipynb", **small)
    notebook = opened("04_training.ipynb")
    panel = notebook.locator(".wb-panel")
    status = panel.locator(".wb-status")

    all_cells()
    wait(page, lambda: points(page) >= 1, FIRST_POINT_S, "the first point")
    expect(status).to_contain_text("isolation level")
    # a knob by keyboard; the text beside it is Python's own
    press(page, panel, "rho_end", "ArrowRight")
    expect(panel).to_contain_text("1.1 applied at step", timeout=30_000)
    press(page, panel, "temperature", "ArrowLeft")
    expect(panel).to_contain_text("0.95 applied at step", timeout=30_000)
    turned = {"rho_end", "temperature"}  # recorded with the step they act in
    wait(page, lambda: turned <= set(Run(folder).knob_events()["knob"]), 30, "the record of the knobs")
    assert set(Run(folder).knob_events()["source"]) == {"panel"}

    wait(page, lambda: points(page) >= 6, 60, "a curve to see")
    shot(panel, "04-running")

    # one Run All more starts no second run
    all_cells()
    expect(notebook.get_by_text("is going on.")).to_be_visible(timeout=60_000)
    expect(notebook.locator(".wb-panel")).to_have_count(1)
    assert len(list(folder.parent.glob("*/config.json"))) == 1

    # reload in the middle: the view goes on by itself
    unsaved = lab.api("contents/04_training.ipynb?content=0")["last_modified"]
    page.keyboard.press("Escape")
    page.keyboard.press("Control+s")

    def saved() -> bool:
        return bool(lab.api("contents/04_training.ipynb?content=0")["last_modified"] != unsaved)

    wait(page, saved, 20, "saving")
    before = Run(folder).last_step()
    page.reload()
    page.wait_for_selector("#jupyterlab-splash", state="detached", timeout=60_000)
    wait(page, lambda: points(page) > before, 40, "new points after the reload")

    # pause, one step, stop: each at a step boundary
    panel.locator(".wb-pause").click()
    expect(status).to_contain_text("paused", timeout=30_000)
    paused = step_of(status.text_content() or "")
    panel.locator(".wb-step").click()
    wait(page, lambda: step_of(status.text_content() or "") == paused + 1, 30, "one step")
    expect(status).to_contain_text("paused", timeout=30_000)
    panel.locator(".wb-start").click()
    wait(page, lambda: Run(folder).last_step() > paused + 1, 30, "going on")
    at = Run(folder).last_step()
    panel.locator(".wb-stop").click()
    expect(panel.locator(".wb-start")).to_be_enabled(timeout=30_000)
    assert Run(folder).last_step() <= at + 2, "stopped within the step in progress"
    shot(panel, "04-stopped")

    # reload after the end: the figure is still right; Start goes on where it was
    shown, done = points(page), Run(folder).last_step()
    page.reload()
    page.wait_for_selector("#jupyterlab-splash", state="detached", timeout=60_000)
    wait(page, lambda: points(page) == shown, 30, "the figure after a reload")
    panel.locator(".wb-start").click()
    wait(page, lambda: Run(folder).last_step() > done, FIRST_POINT_S, "going on after a stop")


def test_after_a_kernel_restart_the_run_goes_on(
    page: Any, lab: Any, opened: Any, connected: Any, all_cells: Any, folder: Path
) -> None:
    small = {"steps": 400, "groups": 2, "group_size": 4, "eval_drafts": 0, "run_dir": str(folder)}
    edit(ROOT / "notebooks" / "04_training.ipynb", lab.folder / "again.ipynb", **small)
    notebook = opened("again.ipynb")
    all_cells()
    wait(page, lambda: (folder / "run.sqlite").exists() and Run(folder).last_step() >= 2, 90, "two steps")
    (kernel,) = lab.api("kernels")
    lab.api(f"kernels/{kernel['id']}/restart", "POST", {})
    done = Run(folder).last_step()
    page.reload()
    page.wait_for_selector("#jupyterlab-splash", state="detached", timeout=60_000)
    connected()
    all_cells()
    wait(page, lambda: Run(folder).last_step() > done, 90, "new steps after the restart")
    assert notebook.get_by_text("Going on with run").count() >= 1
    shutil.rmtree(lab.folder / "again.ipynb", ignore_errors=True)
