"""What a run says of itself in one line, on a terminal and in a panel; and waiting for its end with such lines."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from workbench.control import Control

EVERY_S = 4.0
"""Seconds between two lines of progress at most: a little less than the 5 s that are promised."""
HEADLESS = "WORKBENCH_HEADLESS"
"""Environment variable that our papermill wrapper sets to 1."""


class Followed(Protocol):
    """A training as `learning/runner.py` makes it."""

    control: Control

    @property
    def done(self) -> bool: ...

    def wait(self, poll_s: float = 0.2) -> Any: ...


def has_front_end() -> bool:
    """Whether somebody can touch widgets: the running cell came from a front end that can also answer questions.

    JupyterLab, Notebook and VS Code run cells with `allow_stdin`, papermill and nbclient without it.
    """
    if os.environ.get(HEADLESS) == "1":
        return False
    try:
        from IPython.core.getipython import get_ipython
    except ImportError:
        return False
    kernel = getattr(get_ipython(), "kernel", None)
    return bool(getattr(kernel, "_allow_stdin", False))


def resume_command(run: Path) -> str:
    """What to type to go on with a run, in the present working directory."""
    return f"{own_command()} resume {shlex.quote(_from_here(run.resolve()))}"


def own_command() -> str:
    """How to type `workbench`: by name if that finds the one of this interpreter, else by its path."""
    own = Path(sys.executable).parent / "workbench"
    found = shutil.which("workbench")
    if not own.exists():
        return f"{shlex.quote(sys.executable)} -m workbench"
    if found and os.path.samefile(found, own):
        return "workbench"
    return shlex.quote(_from_here(own))


def _from_here(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def duration(seconds: float) -> str:
    """`75` → `1 min 15 s`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def progress_line(progress: Mapping[str, Any], status: str = "") -> str:
    """One line such as `step 12/50 · acting 14/32 · reward 0.41 · valid 0.62 · ETA 2 min 05 s`."""
    phase = str(progress.get("phase") or status or "starting")
    if progress.get("total"):
        phase += f" {progress.get('done', 0)}/{progress['total']}"
    step = _step(progress)
    parts = [f"step {step}/{progress['steps']}"] if step and progress.get("steps") else []
    parts.append(phase)
    for key, label in (("reward", "reward"), ("valid_action_rate", "valid")):
        if progress.get(key) is not None:
            parts.append(f"{label} {progress[key]:.2f}")
    if progress.get("tokens_per_s"):
        parts.append(f"{progress['tokens_per_s']:.0f} tokens/s")
    if progress.get("eta_s") is not None:
        parts.append(f"ETA {duration(progress['eta_s'])}")
    if status in ("paused", "stopping", "failed"):
        parts.insert(0, status)
    if progress.get("warning"):
        parts.append(f"warning: {progress['warning']}")
    return " · ".join(parts)


def _step(progress: Mapping[str, Any]) -> int:
    """The step going on, else the last one done; 0 before the first."""
    return progress.get("running") or progress.get("step") or 0


class ProgressLog:
    """Progress as lines, at least one in `every_s` seconds.

    A new phase or step gets its line at once if the last one is over a second old. A warning is written when it is new.
    `rarer`: after ten minutes the lines become rarer, so that a long run does not fill a notebook.
    """

    def __init__(self, write: Callable[[str], None], every_s: float = EVERY_S, *, rarer: bool = False) -> None:
        self._write, self._every_s, self._rarer = write, every_s, rarer
        self._started = time.monotonic()
        self._last = self._started - every_s
        self._mark: object = None
        self._warning: object = None

    def __call__(self, progress: Mapping[str, Any], status: str = "", *, last: bool = False) -> None:
        now = time.monotonic()
        every = max(self._every_s, (now - self._started) / 120 if self._rarer else 0.0)
        mark = (progress.get("phase"), _step(progress))
        new = mark != self._mark and (last or (now - self._last >= min(1.0, every) and every <= self._every_s))
        if not new and now - self._last < every:
            return
        warning = progress.get("warning")
        self._write(progress_line({**progress, "warning": warning if warning != self._warning else None}, status))
        self._mark, self._last, self._warning = mark, now, warning


def follow(training: Followed, *, every_s: float = EVERY_S, write: Callable[[str], None] = print) -> Any:
    """Wait for a training's end, writing a progress line at least every `every_s` seconds; return its summary.

    The thread's error is raised here. Ctrl-C stops the run at the next step boundary, says how to go on, and raises
    KeyboardInterrupt.
    """
    show = ProgressLog(write, every_s, rarer=True)
    try:
        while not training.done:
            show(training.control.progress(), training.control.status)
            time.sleep(0.1)
        return training.wait()
    except KeyboardInterrupt:
        training.control.stop()
        write("stopping at the end of this step …")
        while not training.done:
            time.sleep(0.1)
        run = getattr(training, "run", None)
        if run is not None:
            write(f"stopped; nothing is lost. Go on with: {resume_command(run.path)}")
        raise
