"""The live knobs and buttons of a run: views ask from any thread, the trainer answers at its step boundaries.

A request is checked at once against the whole configuration as it will be then, and is applied, all pending ones
together, when the next step starts. Nothing is called while the lock is held, so no caller can block another.
"""

from __future__ import annotations

import difflib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from workbench.config import Config, change, knobs
from workbench.types import WorkbenchError

Status = Literal["idle", "running", "paused", "stopping", "finished", "failed"]
Outcome = Literal["pending", "applied", "unchanged", "superseded", "refused"]

KEPT_REQUESTS = 10_000
"""The oldest settled requests beyond this number are forgotten here; the run folder has them all."""


class StopRequested(Exception):
    """Raised by `Control.boundary` in the trainer's thread: leave the loop, the run can be resumed."""


@dataclass(frozen=True, slots=True)
class Request:
    """One wish to change one knob, and what became of it."""

    number: int
    at: float
    """Seconds since 1970 of the request."""
    knob: str
    new: Any
    """The value as validated; as given when refused."""
    source: str
    """Who asked: user, panel, command line, replay, …"""
    outcome: Outcome = "pending"
    reason: str = ""
    """One sentence; why it was refused, or what replaced it."""
    old: Any = None
    """The value it replaces."""
    step: int | None = None
    """First step that ran with it; for the others the step at whose start it was settled."""

    def as_event(self) -> dict[str, Any]:
        """The row for the run folder."""
        return asdict(self)


class Control:
    """Shared by one trainer and any number of views; every method may be called from any thread.

    `done`: steps that the run has behind it. `later`: knobs that were turned, by the run's own record, in steps that
    will be run again, as `as_event` gives them, in the order of their steps. Each holds from its step on, unless the
    knob is asked for anew before; nothing is recorded a second time.
    """

    def __init__(
        self,
        config: Config,
        *,
        done: int = 0,
        later: Iterable[Mapping[str, Any]] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._condition = threading.Condition(threading.RLock())
        self._clock = clock
        self._config = config
        self._knobs = knobs()
        self._status: Status = "idle"
        self._hold = False
        self._single = 0
        self._stop = False
        self._numbers = 0
        self._requests: dict[int, Request] = {}
        self._pending: dict[str, int] = {}
        self._later = list(later)
        self._events: deque[Request] = deque(maxlen=KEPT_REQUESTS)
        self._next_step = done + 1
        self._progress: dict[str, Any] = {"phase": "not started", "step": done}
        self._error: str | None = None
        self._running: int | None = None
        self._begun: float | None = None
        self._waited = 0.0
        self._estimated = 0.0
        self._heartbeat = time.time()

    # --- buttons

    def start(self) -> None:
        """Run, or go on after a pause. Raises WorkbenchError while the run is stopping."""
        with self._condition:
            if self._status == "stopping":
                raise WorkbenchError("The run is stopping: wait until it has stopped, then start it again.")
            self._hold, self._single, self._stop = False, 0, False
            if self._status in ("idle", "paused"):
                self._status = "running"
            self._condition.notify_all()

    def pause(self) -> None:
        """Hold before the next step; everything stays loaded."""
        with self._condition:
            self._hold, self._single = True, 0
            self._condition.notify_all()

    def step(self) -> None:
        """Run exactly one step more, then pause; n calls are n steps."""
        with self._condition:
            if self._stop:
                return
            self._hold = True
            self._single += 1
            self._condition.notify_all()

    def stop(self) -> None:
        """End before the next step, also while paused; the run can be resumed."""
        with self._condition:
            if self._status in ("finished", "failed"):
                return
            self._stop = True
            if self._status in ("running", "paused"):
                self._status = "stopping"
            self._condition.notify_all()

    @property
    def stop_requested(self) -> bool:
        """True from `stop` on, for work that can be left in the middle of a step."""
        return self._stop

    @property
    def status(self) -> Status:
        return self._status

    @property
    def config(self) -> Config:
        """The settings in force; pending requests are not in it."""
        return self._config

    # --- knobs

    def request(self, knob: str, value: Any, source: str = "user") -> Request:
        """Ask for a knob's new value. The answer says pending, unchanged, or refused and why; nothing is raised."""
        with self._condition:
            request = self._judge(knob, value, source)
            self._numbers += 1
            request = replace(request, number=self._numbers)
            if request.outcome == "pending":
                before = self._pending.get(knob)
                if before is not None:
                    self._settle(before, "superseded", f"replaced by request {request.number}")
                self._pending[knob] = request.number
                self._condition.notify_all()  # a paused run ends when its last step is set to one that is done
            self._requests[request.number] = request
            if request.outcome != "pending":
                self._events.append(request)
            self._forget()
            return request

    def _judge(self, knob: str, value: Any, source: str) -> Request:
        expected = self._expected()
        asked = Request(0, time.time(), knob, value, source, step=self._next_step)
        if knob not in self._knobs:
            return replace(asked, outcome="refused", reason=_no_knob(knob, self._knobs))
        old = getattr(expected, knob)
        asked = replace(asked, old=old)
        try:
            new = getattr(change(expected, **{knob: value}), knob)
        except WorkbenchError as error:
            return replace(asked, outcome="refused", reason=str(error))
        done = self._next_step - 1
        if knob == "steps" and new < done:
            reason = f"steps={new} is not accepted: {done} steps are done, ask for at least {done}, or stop the run."
            return replace(asked, outcome="refused", reason=reason)
        held_back = self._comes_later(knob)  # the value of now is asked for against one that a replay would bring
        return replace(asked, new=new, outcome="pending" if new != old or held_back else "unchanged")

    def _comes_later(self, knob: str) -> bool:
        return any(event["knob"] == knob for event in self._later)

    def _expected(self) -> Config:
        """The settings once the pending requests are applied."""
        if not self._pending:
            return self._config
        return change(self._config, **{knob: self._requests[n].new for knob, n in self._pending.items()})

    def _settle(self, number: int, outcome: Outcome, reason: str = "", **more: Any) -> None:
        settled = replace(self._requests[number], outcome=outcome, reason=reason, step=self._next_step, **more)
        self._requests[number] = settled
        self._events.append(settled)

    def _forget(self) -> None:
        if len(self._requests) > KEPT_REQUESTS:
            waiting = set(self._pending.values())
            del self._requests[next(number for number in self._requests if number not in waiting)]

    def pending(self) -> list[Request]:
        """Requests that the next step will start with, in order."""
        with self._condition:
            return [self._requests[number] for number in sorted(self._pending.values())]

    def record(self) -> list[Request]:
        """Every request in order of asking, with what became of it (the newest 10,000)."""
        with self._condition:
            return list(self._requests.values())

    # --- the trainer's side

    def boundary(self, step: int) -> Config:
        """Called before step number `step`: wait while paused, apply what is pending, return the step's settings.

        Past the last step it does not wait. Raises StopRequested after `stop`.
        """
        with self._condition:
            self._next_step, self._running = step, None
            self._repeat(step)
            if self._begun is None:
                self._begun = self._clock()
            while not self._stop and self._hold and not self._single and step <= self._expected().steps:
                self._status = "paused"
                since = self._clock()
                self._condition.wait(1.0)
                self._waited += self._clock() - since
                self._heartbeat = time.time()
            self._heartbeat = time.time()
            if self._stop:
                self._status = "stopping"
                raise StopRequested(f"stopped before step {step}")
            self._apply()
            if step <= self._config.steps:
                self._single = max(self._single - 1, 0)
                self._running = step
            self._status = "running"
            return self._config

    def _repeat(self, step: int) -> None:
        due = {event["knob"]: event["new"] for event in self._later if event["step"] <= step}
        self._later = [event for event in self._later if event["step"] > step]
        if due:
            self._config = change(self._config, **due)

    def _apply(self) -> None:
        expected = self._expected()
        for knob, number in sorted(self._pending.items(), key=lambda item: item[1]):
            old = getattr(self._config, knob)
            if self._requests[number].new == old and not self._comes_later(knob):
                self._settle(number, "unchanged", "set back before it was applied", old=old)
            else:
                self._settle(number, "applied", old=old)
                self._later = [event for event in self._later if event["knob"] != knob]
        self._pending.clear()
        self._config = expected

    def drain_events(self) -> list[dict[str, Any]]:
        """Requests settled since the last call, in that order, as rows for `Run.commit(knob_events=…)`."""
        with self._condition:
            events = [request.as_event() for request in self._events]
            self._events.clear()
            return events

    def report(self, **progress: Any) -> None:
        """Say where the run is: any of phase, step, steps, done, total, reward, valid_action_rate, eta_s, warning, …

        A new phase drops `done` and `total` of the one before. `eta_s`: seconds to go from now; None: not known.
        """
        with self._condition:
            if progress.get("phase", self._progress["phase"]) != self._progress["phase"]:
                for name in ("done", "total"):
                    self._progress.pop(name, None)
            self._progress.update(progress)
            if self._status == "idle":
                self._status = "stopping" if self._stop else "running"
            if self._begun is None:
                self._begun = self._clock()
            if "eta_s" in progress:
                self._estimated = self._seconds()
            self._heartbeat = time.time()

    def _seconds(self) -> float:
        """Seconds that the run has been going on, without pauses."""
        return max(self._clock() - self._begun - self._waited, 0.0) if self._begun is not None else 0.0

    def _eta(self) -> float | None:
        """What is left of the last estimate; None where it proved too short."""
        estimate = self._progress.get("eta_s")
        left = None if estimate is None else estimate - (self._seconds() - self._estimated)
        return None if left is None or left < 0 else left

    def finished(self, *, stopped: bool = False, error: str | None = None) -> None:
        """The trainer has left: at its end, after a stop (then `start` may follow), or with an error."""
        with self._condition:
            self._status = "failed" if error is not None else "idle" if stopped else "finished"
            self._error = error
            self._stop = False
            self._heartbeat = time.time()
            self._condition.notify_all()

    def progress(self) -> dict[str, Any]:
        """What `report` said last, and status, seconds (running, without pauses), steps, heartbeat, error.

        `step` is the last one done, `running` the one going on, None between two and after the last. `eta_s` falls from
        one report to the next. `heartbeat` is the time (seconds since 1970) of the trainer's last sign of life.
        """
        with self._condition:
            return {
                "steps": self._config.steps,
                "reward": None,
                "valid_action_rate": None,
                "warning": None,
                "seconds": self._seconds(),
                **self._progress,
                "running": self._running,
                "eta_s": self._eta(),
                "status": self._status,
                "error": self._error,
                "heartbeat": self._heartbeat,
            }


def _no_knob(name: str, known: dict[str, Any]) -> str:
    if name in Config.model_fields:
        return f"'{name}' is fixed during a run: set it before the start."
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"the knobs are {', '.join(known)}."
    return f"'{name}' is no knob: {hint}"
