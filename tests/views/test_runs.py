from __future__ import annotations

from pathlib import Path

import pytest

from workbench.config import Config
from workbench.control import Control
from workbench.run import Run
from workbench.types import WorkbenchError
from workbench.views.runs import ask_changes, choose_run

CONFIG = Config(steps=5)


def make(path: Path, config: Config = CONFIG, *, steps: int = 2, finished: bool = False) -> Path:
    with Run.create(path, config, {}) as run:
        for step in range(1, steps + 1):
            run.commit(step, metrics={"reward_mean": 0.1})
        if finished:
            run.set_meta("summary", {"steps": steps})
    return path


def test_without_a_name_the_unfinished_run_goes_on(tmp_path: Path) -> None:
    make(tmp_path / "done", finished=True)
    make(tmp_path / "other", Config(steps=5, seed=1))
    make(tmp_path / "unborn", steps=0)
    left = make(tmp_path / "left")
    path, note = choose_run(CONFIG, "", resume=True, root=tmp_path)
    assert path == left
    assert "2 steps done" in note
    assert "run_dir" in note


def test_a_run_that_somebody_writes_is_left_alone(tmp_path: Path) -> None:
    left = make(tmp_path / "left")
    with Run.open(left):
        path, note = choose_run(CONFIG, "", resume=True, root=tmp_path)
    assert path != left
    assert note.startswith("New run")


@pytest.mark.parametrize(("run_dir", "resume"), [("", False), ("new", True), ("new", False)])
def test_otherwise_a_new_folder(tmp_path: Path, run_dir: str, resume: bool) -> None:
    make(tmp_path / "left")
    path, _ = choose_run(CONFIG, run_dir, resume=resume, root=tmp_path)
    assert path.parent == tmp_path
    assert not path.exists()


def test_a_damaged_run_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "config.json").write_text("{")
    assert choose_run(CONFIG, "", resume=True, root=tmp_path)[1].startswith("New run")


def test_a_named_run_must_have_the_same_fixed_settings(tmp_path: Path) -> None:
    path = make(tmp_path / "mine")
    assert choose_run(Config(steps=9), str(path), resume=False)[0] == path
    assert choose_run(CONFIG, str(tmp_path / "fresh"), resume=False)[0] == tmp_path / "fresh"
    with pytest.raises(WorkbenchError, match="was started with seed=0, and 1 is asked for"):
        choose_run(Config(steps=5, seed=1), str(path), resume=False)


def test_live_settings_that_differ_are_asked_for(tmp_path: Path) -> None:
    run = Run(make(tmp_path / "mine"))
    control = Control(run.config)
    requests = ask_changes(run, control, Config(steps=9, temperature=1.2))
    assert {request.knob: request.new for request in requests} == {"steps": 9, "temperature": 1.2}
    assert all(request.outcome == "pending" and request.source == "notebook" for request in requests)
    assert not ask_changes(run, control, CONFIG)
