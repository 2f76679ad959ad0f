"""Making a run, and opening one to go on: the settings that hold at its last checkpoint, the knobs turned after it.

No torch here: that a run cannot be made or opened is told before the trainer is loaded.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from workbench.config import Config, change, knobs
from workbench.control import Control, Request
from workbench.folder import new_path
from workbench.run import Run
from workbench.tasks.catalog import absolute, load_tasks
from workbench.types import WorkbenchError


def create_run(config: Config, run_path: Path | None) -> Run:
    """A new run folder. Settings are checked against the tasks before anything heavy is loaded; its paths to tasks are
    kept whole, so that it can be gone on with from any folder."""
    config = settled(config)
    repo = config.mlebench_repo
    tasks = load_tasks(config.tasks, mlebench_repo=repo)
    held_out = load_tasks(config.eval_tasks, mlebench_repo=repo) if measures(config) else []
    keep_apart([task.id for task in tasks], [task.id for task in held_out])
    return Run.create(run_path or new_path(config), config, {})


def settled(config: Config) -> Config:
    """The settings with whole paths to tasks."""
    repo = config.mlebench_repo and str(Path(config.mlebench_repo).expanduser().resolve())
    return change(config, tasks=absolute(config.tasks), eval_tasks=absolute(config.eval_tasks), mlebench_repo=repo)


def keep_apart(tasks: Iterable[str], held_out: Iterable[str]) -> None:
    """Raise WorkbenchError when a task, by id, is trained on and measured."""
    if shared := sorted(set(tasks) & set(held_out)):
        raise WorkbenchError(
            f"tasks and eval_tasks share {', '.join(shared)}: "
            "evaluation tasks must be kept out of training, change eval_tasks."
        )


def open_training(path: Path, steps: int | None = None, *, asked: Config | None = None) -> tuple[Run, Control]:
    """The run in `path`, open for writing, and the control to go on with from its last checkpoint.

    `steps` extends (or shortens) its length, which is recorded at once. `asked`: settings that the run must have; its
    knobs stay as they were left, whatever `asked` says. Raises WorkbenchError, and leaves the folder free, when the
    run cannot be opened, its fixed settings are others, or more than `steps` steps are done.
    """
    run = Run.open(path)
    try:
        if asked is not None and (fixed := fixed_differences(run.config, asked)):
            raise WorkbenchError(
                f"'{path}' was started with {fixed[0]}={getattr(run.config, fixed[0])!r}, and "
                f"{getattr(asked, fixed[0])!r} is asked for: choose another folder, or keep the setting."
            )
        if steps is not None:
            _set_steps(run, steps)
        done = checkpoint_step(run)
        later = [event for event in _applied(run) if event["step"] > done + 1]
        return run, Control(config_at(run), done=done, later=later)
    except BaseException:
        run.close()
        raise


def measures(config: Config) -> bool:
    """Whether a run measures drafts on kept-out tasks: before and after, or along training."""
    return config.eval_drafts > 0 or config.eval_every > 0


def checkpoint_step(run: Run) -> int:
    """The step to go on from: that of the checkpoint in force, 0 before the first."""
    latest = run.latest_checkpoint()
    return latest[0] if latest else 0


def config_at(run: Run) -> Config:
    """The settings of the first step after the last checkpoint: those of the start, and the knobs applied since."""
    last = checkpoint_step(run) + 1
    return change(run.config, **{event["knob"]: event["new"] for event in _applied(run) if event["step"] <= last})


def fixed_differences(one: Config, other: Config) -> list[str]:
    """Names of the settings that differ and cannot be changed while a run goes on."""
    one, other, live = settled(one), settled(other), knobs()
    return [name for name in Config.model_fields if name not in live and getattr(one, name) != getattr(other, name)]


def _applied(run: Run) -> list[dict[str, Any]]:
    """The knobs that took effect, by step; of one step, in the order of the record."""
    events = [event for event in run.knob_events().to_dict("records") if event["outcome"] == "applied"]
    return sorted(events, key=lambda event: event["step"])


def _set_steps(run: Run, steps: int) -> None:
    done = checkpoint_step(run)
    if steps < done:
        raise WorkbenchError(f"steps={steps} is not accepted: {done} steps are done, ask for at least {done}.")
    now, old = change(run.config, steps=steps).steps, config_at(run).steps
    lengths = [run.config.steps, *(event["new"] for event in _applied(run) if event["knob"] == "steps")]
    if now != lengths[-1]:
        event = Request(0, time.time(), "steps", now, "resume", "applied", old=old, step=done + 1)
        run.record_knobs(done + 1, [event.as_event()])
