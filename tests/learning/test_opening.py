"""Which settings a run goes on with, from its record alone: no policy is loaded, steps are only written down."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from workbench.config import change, make_config
from workbench.control import Control
from workbench.learning.opening import checkpoint_step, config_at, create_run, fixed_differences, open_training
from workbench.run import Run
from workbench.tasks.catalog import absolute, load_tasks
from workbench.types import WorkbenchError


class Life:
    """A run from its opening to a crash: `step` does to run and control what a trainer's step does."""

    def __init__(self, run: Run, control: Control) -> None:
        self.run, self.control = run, control
        self.done = checkpoint_step(run)
        run.truncate(self.done)
        self.taus: list[int] = []

    def step(self, *, checkpoint: bool = False) -> None:
        config = self.control.boundary(self.done + 1)
        self.done += 1
        self.taus.append(config.tau)
        self.run.commit(self.done, knob_events=self.control.drain_events())
        if checkpoint:
            self.run.save_checkpoint(self.done, lambda folder: (folder / "weights").write_text("w"))

    def crash(self, steps: int | None = None) -> Life:
        self.run.close()
        return Life(*open_training(self.run.path, steps))

    def knobs(self) -> list[list[object]]:
        return self.run.knob_events()[["step", "knob", "old", "new", "outcome"]].values.tolist()


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    """Two steps done, the first with a checkpoint; tau is 5."""
    config = make_config(steps=10)
    run = Run.create(tmp_path / "run", config, {})
    life = Life(run, Control(config))
    life.step(checkpoint=True)
    life.step()
    yield life
    run.close()


def test_paths_to_tasks_are_kept_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was begun with a path from one folder is gone on with, and asked for again, from any other."""
    shutil.copytree(load_tasks("diamonds")[0].folder, tmp_path / "here" / "mine")
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    asked = make_config(tasks="./mine, used-cars", eval_drafts=0)
    run = create_run(asked, tmp_path / "run")
    run.close()
    assert run.config.tasks == f"{tmp_path / 'here' / 'mine'},used-cars"
    assert fixed_differences(run.config, asked) == []
    monkeypatch.chdir(tmp_path / "there")
    assert [task.id for task in load_tasks(run.config.tasks)] == ["diamonds", "used-cars"]
    assert fixed_differences(run.config, change(asked, tasks="diamonds")) == ["tasks"]


@pytest.mark.parametrize("spec", ["train", "used-cars,diamonds", "synthetic:binary-1", "*cars", "core,flag*"])
def test_names_of_tasks_stay_names(spec: str) -> None:
    assert absolute(spec) == spec


def test_knobs_are_turned_again_in_their_steps_after_every_crash(life: Life) -> None:
    life.control.request("tau", 3)
    life.step()
    life.control.request("tau", 99_999)
    life.control.request("tau", 1)
    life.step()
    assert life.taus == [5, 5, 3, 1]
    record = life.knobs()
    assert [row[:2] + row[3:] for row in record] == [
        [3, "tau", 3, "applied"],
        [4, "tau", 99_999, "refused"],
        [4, "tau", 1, "applied"],
    ]
    life = life.crash()
    life.step()
    life = life.crash()
    for _ in range(4):
        life.step()
    assert life.taus == [5, 3, 1, 1]
    assert life.knobs() == record
    life.step(checkpoint=True)
    life = life.crash()
    assert (life.done, life.control.config.tau) == (6, 1)
    assert life.knobs() == record


def test_a_knob_turned_anew_takes_the_place_of_what_came_later(life: Life) -> None:
    life.control.request("tau", 3)
    life.step()
    life.control.request("epsilon", 0.5)
    life.step()
    life = life.crash()
    life.control.request("tau", 1)
    for _ in range(4):
        life.step()
    assert life.taus == [1, 1, 1, 1]
    assert [row[:4] for row in life.knobs()] == [[4, "epsilon", 0.05, 0.5], [2, "tau", 5, 1]]
    assert life.control.config.epsilon == 0.5
    assert config_at(life.run).tau == 1


def test_a_knob_that_a_replay_would_turn_can_be_held_back(life: Life) -> None:
    life.control.request("tau", 3)
    life.step()
    life.step()
    life = life.crash()
    assert life.control.request("tau", 5).outcome == "pending", "as it is now, and so it shall stay"
    for _ in range(4):
        life.step()
    assert life.taus == [5, 5, 5, 5]
    assert life.knobs() == [[2, "tau", 5, 5, "applied"]]
    life = life.crash()
    for _ in range(4):
        life.step()
    assert life.taus == [5, 5, 5, 5]
    assert life.control.request("tau", 5).outcome == "unchanged"


def test_after_a_resume_the_steps_done_are_done(life: Life) -> None:
    life.step(checkpoint=True)
    life = life.crash()
    assert life.control.progress()["step"] == 3
    request = life.control.request("steps", 2)
    assert request.outcome == "refused"
    assert "3 steps are done" in request.reason


def test_a_length_set_on_resume_is_kept_from_the_start(life: Life) -> None:
    life = life.crash(80)  # and comes to no step
    life = life.crash()
    assert life.control.config.steps == 80
    assert life.knobs() == [[2, "steps", 10, 80, "applied"]]
    life = life.crash(80)
    assert len(life.knobs()) == 1, "nothing new"
    life.step(checkpoint=True)
    with pytest.raises(WorkbenchError, match="steps=1 is not accepted: 2 steps are done, ask for at least 2"):
        life.crash(1)
    with pytest.raises(WorkbenchError, match="steps=1000001 is not accepted"):
        life.crash(1_000_001)
    assert life.crash(2).control.config.steps == 2, "and the folder was left free"


def test_a_length_set_on_resume_overrules_one_that_came_later(life: Life) -> None:
    life.step()
    life.control.request("steps", 20)
    life.step()
    life = life.crash()
    assert life.control.config.steps == 10
    life = life.crash(30)
    assert life.knobs() == [[2, "steps", 10, 30, "applied"]]
    for _ in range(5):
        life.step()
    assert life.control.config.steps == 30


def test_other_fixed_settings_are_refused_and_knobs_are_not(life: Life) -> None:
    life.run.close()
    for values in ({"seed": 1}, {"seed": 1, "tau": 1}):
        with pytest.raises(WorkbenchError, match="was started with seed=0, and 1 is asked for"):
            open_training(life.run.path, asked=make_config(steps=10, **values))
    run, control = open_training(life.run.path, asked=make_config(steps=11, tau=1))
    assert control.config == life.run.config
    run.close()
