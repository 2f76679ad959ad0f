"""The training thread of this process: one at a time, owned here and not by a notebook cell.

`start` returns at once with a `Training`; running the same cell again returns the same one, so a second run of a cell
never starts a second run. Nothing is printed from the thread: views read `Training.control` and `Training.run`. A
script that ends while a training goes on is not cut off: the step in flight is finished and saved first.
"""

from __future__ import annotations

import shutil
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from workbench.config import Config
from workbench.control import Control, StopRequested
from workbench.learning.opening import create_run, open_training
from workbench.run import Run
from workbench.types import WorkbenchError

if TYPE_CHECKING:
    from workbench.learning.trainer import Summary

_current: Training | None = None
_lock = threading.Lock()


Origin = Literal["made", "given", "resumed"]
"""Of a run's folder: made for the run, given as an empty one, or with a run in it already."""


class Training:
    """A run going on in its own thread.

    A run that fails before its first step, and did not begin earlier, is removed, so that its name is free for the next
    try: its folder where it was `made` for it, else what is in it.
    """

    def __init__(self, run: Run, control: Control, origin: Origin = "resumed") -> None:
        self.run, self.control, self.origin = run, control, origin
        self.removed = False
        self.summary: Summary | None = None
        self.error: BaseException | None = None
        self.traceback = ""
        self._done = threading.Event()
        # Not a daemon: a process that ends waits for it, and `_stop_with_the_process` keeps that wait to one step.
        self._thread = threading.Thread(target=self._work, name=f"training {run.path.name}", daemon=False)

    def _work(self) -> None:
        try:
            self.control.report(phase="loading the trainer")
            from workbench.learning.trainer import train_in  # seconds: torch

            self.summary = train_in(self.run, self.control)
            self.control.finished()
        except StopRequested:
            self.control.finished(stopped=True)
        except BaseException as error:  # the thread's end: kept for `wait`, which raises it in the caller
            self.error, self.traceback = error, traceback.format_exc()
            _forget_locals(error)
            self._clear_away()
            self.control.finished(error=str(error) or type(error).__name__)
        finally:
            self._done.set()

    def _clear_away(self) -> None:
        """What cannot be removed stays: another error is about to be told."""
        with suppress(OSError, WorkbenchError):
            if self.origin != "resumed" and not self.run.last_step() and not self.run.latest_checkpoint():
                self.removed = True
                _remove(self.run.path, itself=self.origin == "made")

    def _stop_with_the_process(self) -> None:
        main = threading.main_thread()
        while main.is_alive() and not self.done:
            main.join(0.5)
        if not self.done:
            self.control.stop()

    def start(self) -> None:
        self._thread.start()
        threading.Thread(target=self._stop_with_the_process, name="end of the process", daemon=True).start()

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def wait(self, poll_s: float = 0.2) -> Summary | None:
        """Wait for the end and raise the thread's error here. None when stopped before the last step.

        Ctrl-C asks the run to stop at the next step boundary, waits for that, and then raises KeyboardInterrupt.
        """
        try:
            while not self._done.wait(poll_s):
                pass
        except KeyboardInterrupt:
            self.control.stop()
            self._done.wait()
            raise
        if self.error:
            raise self.error
        return self.summary


def current() -> Training | None:
    """The training of this process, running or just ended."""
    return _current


def start(config: Config, run_path: Path | None = None) -> Training:
    """Start (or, if the folder holds a run, resume) a training in its thread; the one already running is returned.

    A run goes on with its knobs as they were left, whatever `config` says of them: ask for others through its control.
    Raises WorkbenchError when the fixed settings of the run are others than those of `config`, when another run is
    going on in this process, or when the run folder cannot be used.
    """
    global _current
    with _lock:
        if _current and not _current.done:
            if run_path is None or _current.run.path.resolve() == Path(run_path).resolve():
                return _current
            raise WorkbenchError(
                f"A run is going on in '{_current.run.path}': stop it before starting another in '{run_path}'."
            )
        if run_path and (Path(run_path) / "config.json").exists():
            _current = Training(*open_training(Path(run_path), asked=config))
        else:
            _current = new_training(config, run_path)
        _current.start()
        return _current


def new_training(config: Config, run_path: Path | None = None) -> Training:
    """A training in a new run folder (None: of a name that is free), not yet started."""
    origin: Origin = "given" if run_path and Path(run_path).exists() else "made"
    run = create_run(config, run_path)
    return Training(run, Control(run.config), origin)


def _forget_locals(error: BaseException | None) -> None:
    """Let go of what the frames of an error, and of those it came from, hold: policy, optimizer, activations."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _remove(folder: Path, *, itself: bool) -> None:
    """Remove what is in a folder, and `itself`. Raises OSError where something cannot be removed."""
    for part in folder.iterdir():
        if part.is_dir() and not part.is_symlink():
            shutil.rmtree(part)
        else:
            part.unlink()
    if itself:
        folder.rmdir()
