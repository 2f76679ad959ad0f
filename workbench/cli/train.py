"""`workbench train` and `workbench resume`: the trainer in a thread, progress on stderr, signals that stop it well."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.cli.common import print_json
from workbench.config import Config
from workbench.views.progress import EVERY_S, ProgressLog, progress_line, resume_command

if TYPE_CHECKING:
    from workbench.learning.runner import Training

GRACE_S = 20.0
"""Seconds that the step in flight has to end after a signal; then it is dropped, to be run again on resume."""


def train(config: Config, run_path: Path | None) -> int:
    """Train in a new run folder; returns the exit status."""
    say("loading the trainer")
    from workbench.control import Control
    from workbench.learning.runner import Training
    from workbench.learning.trainer import create_run
    from workbench.run import new_path

    path = run_path or new_path(config)
    existed = path.exists()
    run = create_run(config, path)
    say(f"run {run.path}")
    return follow(Training(run, Control(config)), fresh=True, keep_folder=existed)


def resume(run_path: Path, steps: int | None) -> int:
    """Go on with a run from its last checkpoint; returns the exit status."""
    from workbench.learning.resuming import checkpoint_step, open_training

    run, control = open_training(run_path, steps)
    say("loading the trainer")
    from workbench.learning.runner import Training

    say(f"run {run.path}, from step {checkpoint_step(run)} of {control.config.steps}")
    return follow(Training(run, control))


def follow(training: Training, *, fresh: bool = False, keep_folder: bool = False) -> int:
    """Start a training, show where it is, and see it to its end. Returns the exit status: 0, or 128 + signal.

    At the first SIGINT or SIGTERM the run stops after the step in flight; at the second, or after 20 s, at once. The
    training's own error is raised here; a `fresh` run that came to no step is removed then (with `keep_folder` only
    what is in its folder).
    """
    command = resume_command(training.run.path)
    with caught_signals() as caught:
        with display() as show:  # it ends, and gives the cursor back, before the process does
            training.start()
            ended = _see_to_its_end(training, caught, show, command)
        if not ended:
            say(f"stopped, the step in flight is dropped; go on with: {command}")
            os._exit(128 + caught[0])  # the trainer's thread cannot be interrupted; all that counts is on the disk
    if training.error is not None:
        if fresh and not training.run.last_step() and not training.run.latest_checkpoint():
            _remove(training.run.path, itself=not keep_folder)  # its name is free for the next try
        else:
            say(f"the run is kept; once the cause is mended, go on with: {command}")
        raise training.error
    if training.summary is None:
        say(f"stopped; go on with: {command}")
        return 128 + (caught[0] if caught else signal.SIGINT)
    finish(training.run.path, training.summary.as_dict())
    return 0


def _see_to_its_end(training: Training, caught: Sequence[int], show: Callable[..., None], command: str) -> bool:
    """Whether the training ended by itself or at the first signal, and not by the patience with the step in flight."""
    deadline = None
    while not training.done:
        time.sleep(0.1)
        if caught and deadline is None:
            training.control.stop()
            deadline = time.monotonic() + GRACE_S
            say(f"stopping after the step in flight (again: at once); go on with: {command}")
        if deadline is not None and (len(caught) > 1 or time.monotonic() > deadline):
            return False
        show(training.control.progress())
    show(training.control.progress(), last=True)
    return True


def _remove(folder: Path, *, itself: bool) -> None:
    """Remove what is in a folder, and `itself`. What cannot be removed stays: another error is about to be told."""
    with suppress(OSError):
        for part in folder.iterdir():
            if part.is_dir() and not part.is_symlink():
                shutil.rmtree(part)
            else:
                part.unlink()
        if itself:
            folder.rmdir()


def finish(run_path: Path, summary: Mapping[str, Any]) -> None:
    """Write the report, and the summary as one line of JSON."""
    from workbench.cli.report import report

    say(f"report {report(run_path)}")
    print_json(summary)


def say(text: str) -> None:
    """A line for the person at the terminal; stdout is for results."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def caught_signals() -> Iterator[list[int]]:
    """The numbers of SIGINT and SIGTERM as they come, in place of what they do otherwise."""
    caught: list[int] = []
    before = {
        number: signal.signal(number, lambda n, _: caught.append(n)) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def display() -> Iterator[Callable[..., None]]:
    """A function that shows progress: one line that changes on a terminal, else a line at least every 5 s."""
    if sys.stderr.isatty():
        with _live_line() as live:
            yield live
        return
    log = ProgressLog(say, EVERY_S)

    def show(progress: Mapping[str, Any], *, last: bool = False) -> None:
        log(progress, progress["status"], last=last)

    yield show


@contextmanager
def _live_line() -> Iterator[Callable[..., None]]:
    from rich.console import Console
    from rich.live import Live
    from rich.spinner import Spinner
    from rich.text import Text

    spinner = Spinner("dots")
    with Live(spinner, console=Console(stderr=True), refresh_per_second=8, transient=True) as live:

        def show(progress: Mapping[str, Any], *, last: bool = False) -> None:
            line = Text(progress_line(progress, progress["status"]))
            if last:
                live.console.print(line)
            else:
                spinner.update(text=line)

        yield show
