from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from workbench.config import Config
from workbench.control import Control
from workbench.learning.opening import open_training
from workbench.run import Run
from workbench.types import WorkbenchError
from workbench.views.panel import Panel
from workbench.views.runs import ask_changes, begin, choose_run, go_on

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
    assert note == ""


@pytest.mark.parametrize(("run_dir", "resume"), [("", False), ("new", True), ("new", False)])
def test_otherwise_a_new_folder(tmp_path: Path, run_dir: str, resume: bool) -> None:
    make(tmp_path / "left")
    assert choose_run(CONFIG, run_dir, resume=resume, root=tmp_path) == (None, "")


def test_a_damaged_run_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "config.json").write_text("{")
    assert choose_run(CONFIG, "", resume=True, root=tmp_path)[0] is None


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


def event(knob: str, new: Any, source: str, outcome: str = "applied") -> dict[str, Any]:
    return {"at": 0.0, "knob": knob, "old": None, "new": new, "source": source, "outcome": outcome, "reason": ""}


@pytest.mark.parametrize("outcome", ["applied", "unchanged", "superseded"])
def test_what_a_cell_has_asked_for_is_not_asked_again(tmp_path: Path, outcome: str) -> None:
    """The kernel is restarted and all cells run: what was turned in the panel after the edit stays as it was left."""
    path = make(tmp_path / "mine")
    with Run.open(path) as run:
        run.record_knobs(3, [event("temperature", 1.2, "notebook", outcome), event("tau", 0, "notebook", "refused")])
        run.record_knobs(4, [event("temperature", 0.8, "panel"), event("epsilon", 0.5, "panel")])
    run, control = open_training(path)
    assert not ask_changes(run, control, Config(steps=5, temperature=1.2))
    assert [(r.knob, r.new) for r in ask_changes(run, control, Config(steps=5, temperature=1.0))] == [
        ("temperature", 1.0)
    ]
    assert [(r.knob, r.new) for r in ask_changes(run, control, Config(steps=5, temperature=1.2, tau=0))] == [("tau", 0)]
    run.close()


def test_an_edit_that_a_replay_will_turn_waits_for_its_step(tmp_path: Path) -> None:
    path = make(tmp_path / "mine")
    with Run.open(path) as run:
        run.record_knobs(3, [event("temperature", 1.2, "notebook")])
    run, control = open_training(path)  # no checkpoint: from step 1 again
    assert not ask_changes(run, control, Config(steps=5, temperature=1.2))
    assert [control.boundary(step).temperature for step in (1, 2, 3)] == [1.0, 1.0, 1.2]
    run.close()


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The training thread of this process, with steps that do nothing but go by."""
    from workbench.learning import runner

    def train_in(run: Run, control: Control) -> Any:
        try:
            control.report(phase="training")
            step = run.last_step()
            while step < control.boundary(step + 1).steps:
                step += 1
                run.commit(step, metrics={"reward_mean": 0.1}, knob_events=control.drain_events())
                run.save_checkpoint(step, lambda folder: (folder / "w").write_text("w"))
                time.sleep(0.01)
        finally:
            run.close()

    monkeypatch.setattr("workbench.learning.trainer.train_in", train_in)
    monkeypatch.setattr(runner, "_current", None)
    yield runner
    if runner.current():
        runner.current().control.stop()
        wait(lambda: runner.current().done)


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_start_after_every_stop_keeps_what_was_turned_since(runner: Any, tmp_path: Path) -> None:
    training, _ = begin(Config(steps=100_000, eval_drafts=0), str(tmp_path / "run"), resume=False)
    panel = Panel(training.run, training.control, restart=lambda: go_on(training))
    for temperature, tau in ((1.1, 6), (1.2, 7), (1.3, 8)):
        seen = panel.run.last_step()
        wait(lambda seen=seen: panel.run.last_step() > seen)
        panel.control.pause()
        wait(lambda: panel.control.status == "paused")
        panel.ask("temperature", temperature)
        panel.press("step")
        wait(lambda value=temperature: panel.control.config.temperature == value)
        panel.ask("tau", tau)  # still pending when the run stops
        panel.press("stop")
        wait(lambda: runner.current().done)
        before = runner.current()
        panel.press("start")
        assert runner.current() is not before
        wait(lambda value=tau: panel.control.config.tau == value)
        assert panel.control.config.temperature == temperature


def test_what_is_edited_while_a_run_goes_on_is_asked_for_or_named(runner: Any, tmp_path: Path) -> None:
    config = Config(steps=100_000, eval_drafts=0)
    training, _ = begin(config, str(tmp_path / "run"), resume=False)
    training.control.request("temperature", 1.3, source="panel")
    wait(lambda: training.control.config.temperature == 1.3)
    assert begin(config, resume=True) == (training, f"Run {tmp_path / 'run'} is going on.")

    edited = config.model_copy(update={"steps": 90_000, "loss": "gspo", "seed": 3})
    again, note = begin(edited, resume=True)
    assert again is training
    assert note.endswith(
        "is going on. From its next step on: steps=90000. "
        "Not taken, because fixed during a run: seed=3, loss='gspo'; for these stop it and start another."
    )
    wait(lambda: training.control.config.steps == 90_000 and training.run.last_step() > 3)
    _, note = begin(config.model_copy(update={"steps": 1}), resume=True)
    assert "going on. steps=1 is not accepted: " in note
    _, note = begin(config, resume=True)
    assert note.endswith("is going on. From its next step on: steps=100000.")
    wait(lambda: training.control.config.steps == 100_000)
    assert training.control.config.temperature == 1.3
