"""Which run folder a notebook works in: a new one, or the one it left unfinished before the kernel was restarted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from workbench.config import ROOT, Config, knobs
from workbench.control import Control, Request
from workbench.folder import Lock
from workbench.learning.opening import fixed_differences
from workbench.run import Run
from workbench.types import WorkbenchError

if TYPE_CHECKING:
    from workbench.learning.runner import Training

NEW = "new"
NOTEBOOK = "notebook"
"""Source of the requests that come from a cell."""
LOOKED_AT = 50
"""Newest folders below `runs/` among which an unfinished run is looked for."""
_asked: dict[Path, Config] = {}
"""What a notebook of this process asked for last, by run folder: a knob turned in the panel is no edit of a cell."""


def begin(config: Config, run_dir: str = "", *, resume: bool) -> tuple[Training, str]:
    """(the training of this process, one sentence about it); see `choose_run` for `run_dir` and `resume`.

    A training that goes on is returned, whatever is asked for: live settings edited since are requested as knobs, and
    the sentence names the fixed ones that differ. So is one that has finished with equal settings unless `run_dir` is
    `new`: running a cell again never starts a second run.
    """
    from workbench.learning.runner import current, start

    running = current()
    if running and not running.done:
        return running, f"Run {running.run.path} is going on.{_ask_edits(running, config)}"
    if running and running.summary and running.run.config == config and run_dir != NEW:
        return running, f'Run {running.run.path} is finished. For a new one set run_dir = "new".'
    path, note = choose_run(config, run_dir, resume=resume)
    _no_progress_bars()
    training = start(config, path)
    ask_changes(training.run, training.control, config)
    _asked[training.run.path] = config
    return training, note or f"New run {training.run.path}."


def go_on(training: Training) -> tuple[Run, Control]:
    """Start a stopped run again in its folder, with the requests that were still pending; what the panel needs."""
    from workbench.learning.runner import current, start

    training = current() or training  # after the first stop and start the caller's is out of date
    again = start(training.control.config, training.run.path)
    for request in training.control.pending():
        again.control.request(request.knob, request.new, source=request.source)
    return again.run, again.control


def choose_run(config: Config, run_dir: str, *, resume: bool, root: Path = ROOT / "runs") -> tuple[Path | None, str]:
    """(folder to train in, or None for a new one in `runs/`; one sentence about a run that is gone on with).

    `run_dir`: a folder, new or with a run to go on with; `new`; or empty: with `resume` the newest unfinished run
    below `root` with the same fixed settings, else a new one. Raises WorkbenchError when the run in `run_dir` has
    other fixed settings.
    """
    if run_dir and run_dir != NEW:
        path = Path(run_dir).expanduser().absolute()
        if not (path / "config.json").exists():
            return path, ""
        run = Run(path)
        if fixed := fixed_differences(run.config, config):
            raise WorkbenchError(
                f"'{path}' was started with {fixed[0]}={getattr(run.config, fixed[0])!r}, and "
                f"{getattr(config, fixed[0])!r} is asked for: choose another run_dir, or keep the setting."
            )
        return path, f"Going on with run {path}, {run.last_step()} steps done."
    if resume and not run_dir and (found := _unfinished(config, root)):
        return found.path, (
            f"Going on with the unfinished run {found.path}, {found.last_step()} steps done. "
            'For a new one set run_dir = "new".'
        )
    return None, ""


def ask_changes(run: Run, control: Control, config: Config) -> list[Request]:
    """Request, as knobs, the live settings of `config` that differ from those that a notebook asked for last.

    By the run's record: what was turned elsewhere since stays turned, and what a replay will turn is not asked for now.
    """
    events = run.knob_events().to_dict("records")
    asked = {e["knob"]: e["new"] for e in events if e["source"] == NOTEBOOK and e["outcome"] != "refused"}
    before = {**run.config.model_dump(), **asked}
    changed = [name for name in knobs() if before[name] != getattr(config, name)]
    return [control.request(name, getattr(config, name), source=NOTEBOOK) for name in changed]


def _ask_edits(training: Training, config: Config) -> str:
    """Sentences on what became of the settings edited while a run goes on."""
    before = _asked.get(training.run.path, training.run.config)
    _asked[training.run.path] = config
    edited = [name for name in knobs() if getattr(before, name) != getattr(config, name)]
    requests = [training.control.request(name, getattr(config, name), source=NOTEBOOK) for name in edited]
    asked = ", ".join(f"{request.knob}={request.new}" for request in requests if request.outcome == "pending")
    said = [f"From its next step on: {asked}."] if asked else []
    said += [request.reason for request in requests if request.outcome == "refused"]
    if fixed := fixed_differences(training.run.config, config):
        values = ", ".join(f"{name}={getattr(config, name)!r}" for name in fixed)
        said.append(f"Not taken, because fixed during a run: {values}; for these stop it and start another.")
    return "".join(f" {sentence}" for sentence in said)


def _unfinished(config: Config, root: Path) -> Run | None:
    folders = sorted(root.glob("*/config.json"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in folders[:LOOKED_AT]:
        try:
            run = Run(file.parent)
            if run.last_step() and not run.meta("summary") and not fixed_differences(run.config, config):
                Lock(run.path).release()  # another process may be training in it
                return run
        except (WorkbenchError, OSError):
            continue
    return None


def _no_progress_bars() -> None:
    """Bars of libraries, drawn from the training thread, would land in whatever cell ran last."""
    from huggingface_hub.utils import disable_progress_bars
    from transformers.utils import logging

    disable_progress_bars()
    logging.disable_progress_bar()
