"""`workbench batch`: the runs of a sweep, each in a process of its own, resumable at any moment.

The folder of a batch holds `runs/<name>/`, `logs/`, `results/<name>.json` for each run that has ended, `sweep.json`,
`summary.csv` and `summary.html`. What a result says is done is never run again; a run that was broken off is gone on
with by its own means. Files are whole or absent, so the end of this process loses nothing.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from workbench.cli.common import Interrupted, describe, is_number, last_json, read_kept
from workbench.cli.sweep import Job, Sweep, changes, notebook_words, read_sweep, shared_workers, train_words
from workbench.cli.train import caught_signals, display, say
from workbench.config import ROOT
from workbench.folder import Lock, read_config, write_file
from workbench.types import WorkbenchError
from workbench.views.progress import duration, own_command

TRIES = 2
"""Times that a run which fails is tried in one call."""
KILL_S = 15.0
"""Seconds from the second signal to the end by force."""
NOTEBOOK_S = 120.0
"""Seconds that a notebook has to stop by itself: an interrupt that meets a kernel between two cells may be lost there,
and what is trained in it survives the second signal, which ends it at once."""
OVER_S = 60.0
"""Seconds that a run has to save its last step once it has taken too long."""
REASON = 300
"""Characters kept of a reason."""
NOTE_S = 5.0
"""Seconds between notes of how long a run has taken, so that little of that is lost with this process."""


@dataclass
class Child:
    """A run going on."""

    job: Job
    process: subprocess.Popen[bytes]
    started: float
    commit: str
    """Of the code that it runs, see `describe`."""
    before_s: float
    """Of the earlier parts of a run that was broken off."""
    noted_s: float = 0.0
    """Of this part, as last noted."""
    over: bool = False
    """Stopped because it took longer than the sweep allows."""

    @property
    def seconds(self) -> float:
        """Of this part."""
        return time.monotonic() - self.started

    @property
    def took_s(self) -> float:
        """Of all parts."""
        return self.before_s + self.seconds


def batch(file: Path, out: Path | None, time_limit: float | None, copy_to: Path | None) -> dict[str, Any]:
    """Run what is left of a sweep; returns the counts, `left` and `failed` by name, and the paths of the summary.

    `time_limit`: minutes after which no further run is started. Raises WorkbenchError for a sweep that is wrong and for
    a folder that another batch works in; Interrupted after a signal, with the runs in flight saved.
    """
    sweep = read_sweep(file)
    folder, copy_to = out or ROOT / "runs" / "sweeps" / file.stem, copy_to or sweep.copy_to
    if copy_to is not None and copy_to.is_dir():
        raise WorkbenchError(f"'{copy_to}' is a folder: name the file of the copy with --copy-to, or copy_to.")
    try:
        for part in ("runs", "logs", "results"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        lock = Lock(folder)
    except OSError as error:
        raise _unwritable(folder, error) from None
    try:
        return Batch(sweep, folder, copy_to).run(math.inf if time_limit is None else 60 * time_limit)
    except OSError as error:
        raise _unwritable(folder, error) from None
    finally:
        lock.release()


def _unwritable(folder: Path, error: OSError) -> WorkbenchError:
    return WorkbenchError(
        f"'{error.filename or folder}' cannot be written ({error.strerror or error}): mend this and start the batch "
        "again, or choose another folder with --out."
    )


@dataclass
class Batch:
    """One call: the runs that are left, those going on, and what is known of those that have ended."""

    sweep: Sweep
    folder: Path
    copy_to: Path | None
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    tries: dict[str, int] = field(default_factory=dict)
    running: list[Child] = field(default_factory=list)

    def run(self, seconds: float) -> dict[str, Any]:
        """Work through the queue; see `batch`."""
        self._open()
        queue = deque(job for job in self.sweep.jobs if self._status(job) != "done")
        say(f"{len(self.sweep.jobs)} runs, {len(self.sweep.jobs) - len(queue)} done; folder {self.folder}")
        end = time.monotonic() + seconds
        self._write()
        with caught_signals() as caught, display(rarer=True) as show:
            try:
                self._work(queue, caught, show, end)
            finally:
                for child in self.running:  # only where an error of ours ended the loop
                    child.process.terminate()
        left = [job.name for job in self.sweep.jobs if self._status(job) == "left"]
        if caught:
            raise Interrupted(
                f"Stopped with {len(self.sweep.jobs) - len(left)} of {len(self.sweep.jobs)} runs ended; "
                f"go on with: {self._again()}",
                caught[0],
            )
        if left:
            say(f"{len(left)} runs are left, {left[0]} the next; go on with: {self._again()}")
        return self._summary(left)

    def _work(self, queue: deque[Job], caught: Sequence[int], show: Callable[..., None], end: float) -> None:
        told, again_at, killed_at = 0, math.inf, math.inf
        while self.running or (queue and not caught and time.monotonic() < end):
            while len(self.running) < self.sweep.parallel and not caught and time.monotonic() < end:
                job = next((job for job in queue if not self._busy(job)), None)
                if job is None:
                    break
                queue.remove(job)
                self._start(job)
            if len(caught) > told or time.monotonic() > again_at:
                self._pass_on(caught[0], again=told > 0)
                again_at = time.monotonic() + NOTEBOOK_S if self.sweep.notebook and not told else math.inf
                killed_at = time.monotonic() + KILL_S if told else killed_at
                told += 1  # one by one: two that came between two looks are two
            for child in list(self.running):
                self._look(child, queue, stopping=bool(caught), kill=time.monotonic() > killed_at)
            show(self._progress(len(queue)))
            time.sleep(0.1)
        show(self._progress(len(queue)), last=True)

    # --- one run

    def _start(self, job: Job) -> None:
        words = self._words(job)
        with (
            (self.folder / "logs" / f"{job.name}.out").open("wb") as stdout,
            (self.folder / "logs" / f"{job.name}.log").open("ab") as stderr,
        ):
            process = subprocess.Popen(
                [sys.executable, "-m", "workbench.cli.batch_child", str(os.getpid()), *words],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,  # Ctrl-C on the terminal reaches it through us only
            )
        self.running.append(Child(job, process, time.monotonic(), describe(), self._before_s(job)))

    def _before_s(self, job: Job) -> float:
        """Seconds that the earlier parts of a run took, if it is gone on with."""
        seconds = 0.0
        if (self.folder / "runs" / job.name / "config.json").exists():
            with suppress(OSError, ValueError):  # none was noted
                seconds = float((self.folder / "logs" / f"{job.name}.seconds").read_text())
        return seconds if is_number(seconds) else 0.0

    def _note(self, child: Child) -> None:
        """Keep how long a run has taken so far: it may be broken off, and so may we."""
        child.noted_s = child.seconds
        with suppress(OSError):  # the time to go is worth no run
            write_file(self.folder / "logs" / f"{child.job.name}.seconds", f"{child.took_s:.1f}\n")

    def _words(self, job: Job) -> list[str]:
        """The command line of a run: a new one, or the next part of one that was broken off."""
        run = self.folder / "runs" / job.name
        begun = (run / "config.json").exists()
        if self.sweep.notebook is None:
            settings = {**shared_workers(job, self.sweep), **job.settings}
            return ["resume", str(run)] if begun else ["train", "--run", str(run), *train_words(settings)]
        # The number of workers is fixed within a run, and a batch may go on with another number of runs side by side.
        workers = shared_workers(job, self.sweep)
        with suppress(WorkbenchError):  # of a run that is damaged the run itself tells
            workers = {"workers": read_config(run)[0].workers} if begun else workers
        takes = {"settings", "workers"} & self.sweep.declared.keys()
        settings = {**(workers if takes and "workers" not in job.settings else {}), **job.settings}
        words = notebook_words(settings, self.sweep.declared, run)
        return ["notebook", str(self.sweep.notebook), "--out", str(self.folder / "notebooks" / job.name), *words]

    def _busy(self, job: Job) -> bool:
        """Whether another process writes the run: that of a batch which was killed saves its last step."""
        run = self.folder / "runs" / job.name
        if not (run / "lock").exists():
            return False
        try:
            Lock(run).release()
        except WorkbenchError:
            return True
        return False

    def _look(self, child: Child, queue: deque[Job], *, stopping: bool, kill: bool) -> None:
        """See whether a run has ended, or must."""
        status = child.process.poll()
        if status is not None or child.seconds > child.noted_s + NOTE_S:
            self._note(child)
        if status is None:
            if kill:
                child.process.kill()
            elif child.seconds > self.sweep.limit_s and not child.over:
                child.over = True
                child.process.terminate()
            elif child.seconds > self.sweep.limit_s + OVER_S:
                child.process.kill()
            return
        self.running.remove(child)
        job = child.job
        if status == 0:
            self._end(child, "done", None)
        elif child.over:
            self._end(child, "failed", f"took longer than limit_s={self.sweep.limit_s:g}")
        elif not stopping:
            self.tries[job.name] = self.tries.get(job.name, 0) + 1
            reason = self._reason(job, status)
            if self.tries[job.name] < TRIES:
                say(f"{job.name} failed and is tried once more: {reason}")
                queue.append(job)
            else:
                self._end(child, "failed", reason)

    def _pass_on(self, number: int, *, again: bool) -> None:
        """Ask the runs in flight to stop; asked again, they drop the step in flight."""
        if self.running:
            say("stopping the runs in flight at once" if again else "stopping the runs in flight after their steps")
        for child in self.running:
            with suppress(ProcessLookupError):
                child.process.send_signal(number)

    def _reason(self, job: Job, status: int) -> str:
        """The signal that ended a run, else the last line that it wrote to stderr, else its exit status."""
        text = (self.folder / "logs" / f"{job.name}.log").read_text(encoding="utf-8", errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        if status < 0:  # what it wrote last says nothing of that
            return f"ended by {signal.Signals(-status).name}" + (
                " (out of memory?)" if status == -signal.SIGKILL else ""
            )
        return (lines[-1] if lines else f"exit status {status}")[:REASON]

    def _end(self, child: Child, status: str, reason: str | None) -> None:
        """Keep what came of a run, and write the summary anew."""
        from workbench.views.comparison import run_facts

        job = child.job
        summary = last_json(self.folder / "logs" / f"{job.name}.out") if status == "done" else {}
        facts = {name: value for name, value in summary.items() if isinstance(value, int | float)}
        curves: dict[str, Any] = {}
        run = self.folder / "runs" / job.name
        if (run / "config.json").exists():
            try:
                measured, curves = run_facts(run)
                facts |= measured
            except WorkbenchError as error:
                status, reason = "failed", str(error)
        kept: dict[str, Any] = {
            "status": status,
            "reason": reason,
            "facts": facts,
            "curves": curves if status == "done" else {},
        }
        kept |= {"commit": child.commit, "took_s": round(child.took_s, 1), "settings": dict(job.settings)}
        write_file(self.folder / "results" / f"{job.name}.json", json.dumps(kept, default=str) + "\n")
        self.results[job.name] = kept
        self._write()
        valid = f", valid {facts['valid_before']:.2f} → {facts['valid_after']:.2f}" if "valid_after" in facts else ""
        say(f"{job.name} {status} after {duration(child.took_s)}{valid}{f': {reason}' if reason else ''}")

    # --- all runs

    def _open(self) -> None:
        """Read what earlier calls left, and say how their sweep differs from this one."""
        known = self.folder / "sweep.json"
        names = "the names of the runs with their settings"
        remedy = "remove it to go on, what was run is kept"
        before = read_kept(known, lambda _: True, names, remedy) if known.exists() else None
        for job in self.sweep.jobs:
            file = self.folder / "results" / f"{job.name}.json"
            if file.exists():
                self.results[job.name] = read_kept(
                    file, _is_result, "what a batch keeps of a run that ended", "remove it to run that again"
                )
        if note := changes(before, self.sweep.jobs):
            say(note)
        write_file(known, json.dumps({job.name: dict(job.settings) for job in self.sweep.jobs}, indent=1) + "\n")

    def _status(self, job: Job) -> str:
        return self.results.get(job.name, {}).get("status", "left")

    def _progress(self, queued: int) -> dict[str, Any]:
        ended = len(self.sweep.jobs) - queued - len(self.running)
        names = ", ".join(child.job.name for child in self.running)
        phase = f"running {names}" if names else "waiting" if queued else "finished"
        progress: dict[str, Any] = {"phase": phase, "done": ended, "total": len(self.sweep.jobs)}
        took = [result["took_s"] for result in self.results.values() if result["status"] == "done"]
        if took:
            each = fmean(took)
            left = queued * each + sum(max(each - child.took_s, 0) for child in self.running)
            progress["eta_s"] = left / self.sweep.parallel
        return {**progress, "status": "running"}

    def _write(self) -> None:
        """summary.csv and summary.html, whole or not at all, and the copy that was asked for."""
        from workbench.views.comparison import render, table

        none: dict[str, Any] = {"facts": {}, "curves": {}, "reason": None}
        records = [
            {**none, **self.results.get(job.name, {"status": "left"}), "name": job.name, "arm": job.arm}
            | {"seed": job.seed, "varied": job.varied}
            for job in self.sweep.jobs
        ]
        text = table(records).to_csv(index=False)
        write_file(self.folder / "summary.csv", text)
        if self.copy_to is not None:
            self.copy_to.parent.mkdir(parents=True, exist_ok=True)
            write_file(self.copy_to, text)
        kind = "the trainer" if self.sweep.notebook is None else self.sweep.notebook.name
        write_file(self.folder / "summary.html", render(f"Sweep {self.sweep.file.stem}", records, f"Runs of {kind}."))

    def _summary(self, left: Sequence[str]) -> dict[str, Any]:
        failed = [
            {"run": job.name, "reason": self.results[job.name]["reason"]}
            for job in self.sweep.jobs
            if self._status(job) == "failed"
        ]
        total = len(self.sweep.jobs)
        return {
            "folder": str(self.folder),
            "runs": total,
            "done": total - len(left) - len(failed),
            "failed": failed,
            "left": list(left),
            "summary_csv": str(self.folder / "summary.csv"),
            "summary_html": str(self.folder / "summary.html"),
        }

    def _again(self) -> str:
        words = ["batch", str(self.sweep.file), "--out", str(self.folder)]
        return f"{own_command()} {' '.join(map(shlex.quote, words))}"


def show(found: Mapping[str, Any]) -> None:
    """The counts and where the summary is, for a person."""
    for failure in found["failed"]:
        print(f"failed  {failure['run']}: {failure['reason']}")
    print(f"{found['done']} of {found['runs']} runs done, {len(found['failed'])} failed, {len(found['left'])} left")
    print(found["summary_html"])


def _is_result(kept: Mapping[str, Any]) -> bool:
    """Whether this is what `Batch._end` keeps, as far as the summary reads it."""
    facts, curves = kept.get("facts", {}), kept.get("curves", {})
    return (
        kept.get("status") in ("done", "failed")
        and is_number(kept.get("took_s"))
        and isinstance(kept.get("reason"), str | None)
        and isinstance(kept.get("commit"), str | None)
        and isinstance(facts, dict)
        and all(isinstance(value, int | float) for value in facts.values())
        and isinstance(curves, dict)
        and all(map(_is_curve, curves.values()))
    )


def _is_curve(points: Any) -> bool:
    """Whether these are two points or more with rising executions, from 0 on."""
    if not isinstance(points, list) or len(points) < 2:
        return False
    if not all(isinstance(point, list) and len(point) == 2 and all(map(is_number, point)) for point in points):
        return False
    at = [point[0] for point in points]
    return at[0] == 0 and all(one < other for one, other in itertools.pairwise(at))
