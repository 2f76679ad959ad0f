"""`workbench train` and `workbench resume`: the trainer in a thread, progress on stderr, signals that stop it well."""

from __future__ import annotations

import math
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.cli.common import print_json, say
from workbench.config import Config
from workbench.types import WorkbenchError
from workbench.views.progress import EVERY_S, ProgressLog, duration, own_command, progress_line, resume_command

if TYPE_CHECKING:
    from workbench.learning.runner import Training
    from workbench.run import Run

STARTING = ("not started", "loading the trainer", "loading the policy", "starting the sandbox")
"""Phases in which a run may turn out not to be possible."""
GRACE_S = 20.0
"""Least seconds that the step in flight has to end after SIGTERM, whose sender waits for no keyboard."""


def train(config: Config, run_path: Path | None) -> int:
    """Train in a new run folder; returns the exit status."""
    from workbench.learning.runner import new_training

    training = new_training(config, run_path)
    return follow(training, begun=f"run {training.run.path}")


def resume(run_path: Path, steps: int | None) -> int:
    """Go on with a run from its last checkpoint; returns the exit status."""
    from workbench.learning.opening import checkpoint_step, open_training

    run, control = open_training(run_path, steps)
    from workbench.learning.runner import Training

    say(f"run {run.path}, from step {checkpoint_step(run)} of {control.config.steps}")
    if steps is not None and (note := schedule_note(run, control.config)):
        say(note)
    return follow(Training(run, control))


def schedule_note(run: Run, config: Config) -> str:
    """What another length makes of the learning rate and of ρ, whose courses are shares of it; "" where no step is."""
    from workbench.learning.opening import checkpoint_step
    from workbench.learning.strategies import focus
    from workbench.learning.update import decay

    done = checkpoint_step(run)
    rows = run.metrics(since=done)
    if not 0 < done < config.steps or not {"learning_rate_base", "rho"} <= set(rows):
        return ""
    last = rows.iloc[0]
    rate = (config.learning_rate or last["learning_rate_base"]) * decay(done + 1, config)
    rho = focus(done + 1, config.steps, config)
    return (
        f"with {config.steps} steps the learning rate of step {done + 1} is {rate:.3g} and rho {rho:.3g} "
        f"(in step {done} they were {last['learning_rate']:.3g} and {last['rho']:.3g})"
    )


def follow(training: Training, *, begun: str = "") -> int:
    """Start a training, show where it is, and see it to its end. Returns the exit status: 0, or 128 + signal.

    `begun` is said once policy and sandbox are there: a run that fails before may be removed again.
    At the first SIGINT or SIGTERM the run stops after the step in flight, however long that takes after a SIGINT, and
    at most `_grace_s` after a SIGTERM; at the second signal at once. The training's own error is raised here.
    """
    command = resume_command(training.run.path)
    with caught_signals() as caught:
        with display() as show:  # it ends, and gives the cursor back, before the process does
            training.start()
            ended = _see_to_its_end(training, caught, show, command, begun)
        if not ended:
            say(f"stopped at once, {_lost(training.run)}; go on with: {command}")
            os._exit(128 + caught[0])  # the trainer's thread cannot be interrupted; all that counts is on the disk
    if training.error is not None:
        if not training.removed:
            say(f"the run is kept; once the cause is mended, go on with: {command}")
        raise training.error
    if training.summary is None:
        say(f"stopped; go on with: {command}")
        return 128 + (caught[0] if caught else signal.SIGINT)
    finish(training.run.path, training.summary.as_dict())
    return 0


def _see_to_its_end(
    training: Training, caught: Sequence[int], show: Callable[..., None], command: str, begun: str
) -> bool:
    """Whether the training ended by itself or after the first signal, and not by a second one or the end of a grace."""
    deadline = None
    while not training.done:
        time.sleep(0.1)
        if caught and deadline is None:
            training.control.stop()
            last_s = _last_step_s(training.run)
            deadline = time.monotonic() + _grace_s(caught[0], last_s)
            took = f" (the last one took {duration(last_s)})" if last_s >= 1 else ""
            say(f"stopping after the step in flight{took}; again: at once, and it is lost; go on with: {command}")
        if deadline is not None and (len(caught) > 1 or time.monotonic() > deadline):
            return False
        progress = training.control.progress()
        if begun and progress["phase"] not in STARTING:
            say(begun)
            begun = ""
        show(progress)
    show(training.control.progress(), last=True)
    return True


def _lost(run: Run) -> str:
    """What a run that was stopped at once has to do again."""
    latest = run.latest_checkpoint()
    if latest is None:
        return "before the first checkpoint, so that it begins anew with step 1"
    return f"what came after the checkpoint of step {latest[0]} is run again"


def _grace_s(number: int, last_s: float) -> float:
    """Seconds that the step in flight has to end after signal `number`: whoever pressed Ctrl-C can press it again."""
    return math.inf if number == signal.SIGINT else max(GRACE_S, 3 * last_s)


def _last_step_s(run: Run) -> float:
    """Seconds that the last recorded step took; 0 before the first."""
    rows = run.metrics(since=run.last_step())
    return float(rows["seconds"].iloc[-1]) if "seconds" in rows else 0.0


def finish(run_path: Path, summary: Mapping[str, Any]) -> None:
    """Write the report, and the summary as one line of JSON; without a report where none can be written."""
    from workbench.cli.report import report

    try:
        say(f"report {report(run_path)}")
    except WorkbenchError as error:
        say(f"{error} Elsewhere: {own_command()} report {shlex.quote(str(run_path))} --out FILE.html")
        summary = {**summary, "report": None}
    print_json(summary)


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
