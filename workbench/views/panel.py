"""The control panel of a run in a notebook: buttons, status, and a widget for every knob.

A callback does nothing but write a request to the run's `Control`; what became of it is read back and written beside
the knob. Callbacks come on any thread (the kernel's main thread, a subshell's, the dashboard's clock), hence the lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import ipywidgets as widgets
import psutil

from workbench.config import knobs
from workbench.control import Control
from workbench.control import Request as KnobRequest
from workbench.run import Run
from workbench.types import WorkbenchError
from workbench.views.progress import progress_line
from workbench.views.traces import readable

Restart = Callable[[], tuple[Run, Control]]

SLIDERS: dict[str, dict[str, Any]] = {
    "rho_end": {"label": "focus ρ after its ramp (rho_end)", "min": 0.0, "max": 3.0, "step": 0.1},
    "tau": {"label": "cooling τ, steps (tau)", "min": 0, "max": 20, "step": 1},
    "group_size": {"label": "group size (group_size)", "min": 2, "max": 32, "step": 1},
    "temperature": {"label": "temperature T (temperature)", "min": 0.1, "max": 2.0, "step": 0.05},
    "learning_rate": {"label": "learning rate (learning_rate)", "min": -7, "max": -2, "step": 0.05},
}
"""The knobs in front, with the range of their sliders; the others are number fields, folded away."""

_LABEL = {"description_width": "initial"}
_BUTTONS = (
    ("start", "Start", "play", "Run; after a pause go on, after a stop continue from the last step"),
    ("pause", "Pause", "pause", "Hold before the next step; everything stays loaded"),
    ("step", "Step", "step-forward", "Run one step, then hold"),
    ("stop", "Stop", "stop", "End before the next step; the run can be continued"),
)
_ENABLED = {
    "running": {"pause", "step", "stop"},
    "paused": {"start", "step", "stop"},
    "stopping": set(),
    "idle": {"start"},
    "finished": {"start"},
    "failed": {"start"},
}


class Panel:
    """Widgets that control one run.

    `restart` starts the run of the same folder again after a stop and returns its new run and control; without it the
    Start button only ends a pause. `refresh` writes the newest status; the dashboard's clock calls it.
    """

    def __init__(self, run: Run, control: Control, restart: Restart | None = None) -> None:
        self.run, self.control, self.restart = run, control, restart
        self._lock = threading.RLock()
        self._quiet = False
        self._message = ""
        self._rates: tuple[float, float] | None = None
        self.buttons = {name: self._button(name, label, icon, hint) for name, label, icon, hint in _BUTTONS}
        self.knobs: dict[str, widgets.Widget] = {}
        self.outcomes: dict[str, widgets.HTML] = {}
        self.bar = widgets.FloatProgress(min=0, max=1, description="", layout=widgets.Layout(width="100%"))
        self.status = widgets.HTML()
        rows = {name: self._knob(name, spec) for name, spec in knobs().items()}
        front = [rows.pop(name) for name in SLIDERS]
        more = widgets.Accordion([widgets.VBox(list(rows.values()))], titles=("More knobs",), selected_index=None)
        self.widget = widgets.VBox(
            [widgets.HBox(list(self.buttons.values())), self.bar, self.status, widgets.VBox(front), more]
        )
        self.widget.add_class("wb-panel")
        self.refresh()

    def attach(self, run: Run, control: Control) -> None:
        """Show and control another run, or the same one started again."""
        with self._lock:
            self.run, self.control, self._message, self._rates = run, control, "", None
        self.refresh()

    # --- what the user does

    def press(self, name: str) -> None:
        """What a button does: `start`, `pause`, `step` or `stop`. A mistake is written into the panel."""
        try:
            if name == "start" and self.control.status in ("idle", "finished", "failed") and self._ended():
                if self.restart is None:
                    raise WorkbenchError("This run has ended: run the cell that starts it again.")
                self.attach(*self.restart())
            else:
                getattr(self.control, name)()
            self._message = ""
        except WorkbenchError as error:
            self._message = str(error)
        self.refresh()

    def ask(self, knob: str, value: Any) -> KnobRequest:
        """Request a knob's value from the run; a refusal puts the widget back."""
        request = self.control.request(knob, value, source="panel")
        self.refresh()
        return request

    def report(self, message: str) -> None:
        """Write a problem into the panel, until the next button is pressed."""
        self._message = message
        self.refresh()

    def _ended(self) -> bool:
        """Idle means either not started yet or stopped; only a stopped run has a phase other than the first."""
        return self.control.status != "idle" or self.control.progress()["phase"] != "not started"

    def _changed(self, knob: str, change: Any) -> None:
        with self._lock:
            if self._quiet:
                return
        self.ask(knob, change["new"])

    # --- what the run says

    def refresh(self) -> None:
        """Write status, progress, the outcome of requests and the knobs' values into the widgets."""
        with self._lock:
            progress = self.control.progress()
            status = str(progress["status"])
            self._set(self.status, self._status_html(progress, status))
            self._set(self.bar, min(progress["step"] / max(progress["steps"], 1), 1.0))
            for name, button in self.buttons.items():
                disabled = name not in _ENABLED[status]
                if button.disabled != disabled:
                    button.disabled = disabled
            last = {request.knob: request for request in self.control.record()}
            waiting = {request.knob: request.new for request in self.control.pending()}
            for knob, widget in self.knobs.items():
                value = waiting.get(knob, getattr(self.control.config, knob))
                note = ""
                if knob == "learning_rate" and self._rates:
                    base, in_force = self._rates
                    value = base if value is None else value
                    note = f"{in_force:.3g} in the last step, after decay" if in_force != base else ""
                self._put(knob, widget, value)
                self._set(self.outcomes[knob], outcome_html(last.get(knob), value, note))

    def show_learning_rate(self, base: float, in_force: float) -> None:
        """The learning rate of the last step: the `base`, which the knob sets and the trainer chooses where the
        configuration leaves it open, and what its decay made of it, told beside the knob."""
        with self._lock:
            self._rates = base, in_force
        self.refresh()

    def _status_html(self, progress: dict[str, Any], status: str) -> str:
        line = progress_line(progress, status)
        level = self.run.environment.get("isolation_level")
        memory = psutil.Process().memory_info().rss / 2**30
        line += f" · isolation level {level}" if level else ""
        line += f" · memory {memory:.1f} GB"
        parts = [f'<div class="wb-status">{readable(line)}</div>']
        for problem in (progress.get("error"), self._message):
            if problem:
                parts.append(f'<div class="wb-error" role="alert"><b>Error:</b> {readable(problem)}</div>')
        return "".join(parts)

    def _put(self, knob: str, widget: Any, value: Any) -> None:
        if value is None or widget.value == value:
            return
        self._quiet = True
        try:
            widget.value = value
        finally:
            self._quiet = False

    @staticmethod
    def _set(widget: Any, value: Any) -> None:
        if widget.value != value:
            widget.value = value

    # --- parts

    def _button(self, name: str, label: str, icon: str, hint: str) -> widgets.Button:
        button = widgets.Button(description=label, icon=icon, tooltip=hint)
        button.add_class(f"wb-{name}")
        button.on_click(lambda _: self.press(name))
        return button

    def _knob(self, name: str, spec: dict[str, Any]) -> widgets.HBox:
        widget = _slider(name) if name in SLIDERS else _field(name, spec)
        unit = f" [{spec['unit']}]" if spec.get("unit") else ""
        widget.tooltip = f"{spec['description']}{unit} Default: {spec.get('default')}."
        widget.add_class(f"wb-knob-{name}")
        self.knobs[name], self.outcomes[name] = widget, widgets.HTML()
        self._put(name, widget, getattr(self.control.config, name))
        widget.observe(lambda change: self._changed(name, change), names="value")
        return widgets.HBox([widget, self.outcomes[name]])


def outcome_html(request: KnobRequest | None, value: Any, note: str = "") -> str:
    """What became of the last request for a knob, in a few words, and a note."""
    text = f"now {value:.4g}" if isinstance(value, float) else "" if value is None else f"now {value}"
    if request is not None:
        new = f"{request.new:.4g}" if isinstance(request.new, float) else request.new
        text = {
            "pending": f"{new} pending → applies at the next step",
            "applied": f"{new} applied at step {request.step}",
            "refused": f"refused: {request.reason}",
        }.get(request.outcome, text)
    text = " · ".join(part for part in (text, note) if part)
    return f'<span class="wb-outcome" role="status">{readable(text)}</span>'


def _slider(name: str) -> widgets.Widget:
    shape = dict(SLIDERS[name])
    common = {
        "description": shape.pop("label"),
        "style": {"description_width": "17em"},
        "layout": widgets.Layout(width="38em"),
        "continuous_update": False,
    }
    if name == "learning_rate":
        return widgets.FloatLogSlider(value=1e-4, base=10, readout_format=".1e", **shape, **common)
    kind = widgets.IntSlider if isinstance(shape["step"], int) else widgets.FloatSlider
    return kind(value=shape["min"], **shape, **common)


def _field(name: str, spec: dict[str, Any]) -> widgets.Widget:
    kinds = {spec.get("type"), *(option.get("type") for option in spec.get("anyOf", ()))}
    kind = widgets.FloatText if "number" in kinds else widgets.IntText
    layout = widgets.Layout(width="22em")
    return kind(description=name, style=_LABEL, layout=layout, continuous_update=False)
