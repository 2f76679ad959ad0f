"""The live dashboard: panel, one figure and the rollouts, kept up to date by a thread that only sets widget values.

Everything is read from the run folder and the run's control, so that a browser reload or another dashboard loses
nothing. A kernel has one dashboard at a time: opening another closes the one before.
"""

from __future__ import annotations

import threading
from copy import deepcopy
from typing import Any

import ipywidgets as widgets
import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.control import Control
from workbench.run import Run
from workbench.views import figures
from workbench.views.panel import Panel, Restart
from workbench.views.traces import RolloutBrowser

TICK_S = 1.0

_open: Dashboard | None = None


class LiveFigure(go.FigureWidget):
    """A figure whose traces are made once; `push` sends new data for all of them in one message.

    plotly syncs the whole data only when a figure is displayed, so that a reloaded page would show the state of that
    moment; here each message carries the whole data too.
    """

    def push(self, xs: list[np.ndarray], ys: list[np.ndarray]) -> None:
        """New x and y of every trace, in order."""
        with self.batch_update():
            for trace, x, y in zip(self.data, xs, ys, strict=True):
                trace.x, trace.y = x, y

    def _send_update_msg(
        self, restyle_data: Any, relayout_data: Any, trace_indexes: Any = None, source_view_id: Any = None
    ) -> None:
        # As plotly 7.1's, but in one message instead of four, and with the whole data for a page that is reloaded.
        with self.hold_sync():
            self._last_trace_edit_id += 1
            self._last_layout_edit_id += 1
            self._trace_edit_in_process = self._layout_edit_in_process = True
            self._widget_data = deepcopy(self._data)
            self._py2js_update = {
                "style_data": restyle_data,
                "layout_data": relayout_data,
                "style_traces": self._normalize_trace_indexes(trace_indexes),
                "trace_edit_id": self._last_trace_edit_id,
                "layout_edit_id": self._last_layout_edit_id,
                "source_view_id": source_view_id,
            }


class Dashboard:
    """Panel, live figure and rollout browser of one run."""

    def __init__(self, run: Run, control: Control, restart: Restart | None = None, *, tick_s: float = TICK_S) -> None:
        global _open
        if _open is not None:
            _open.close()
        _open = self
        self.panel = Panel(run, control, restart)
        self.metrics = run.metrics()
        self.figure = LiveFigure(figures.dashboard(self.metrics))
        self.rollouts = RolloutBrowser(run)
        self._closed = threading.Event()
        self._tick_s = tick_s
        self._thread = threading.Thread(target=self._work, name="dashboard", daemon=True)
        self._show_learning_rate()

    def show(self) -> None:
        """Display the three parts below the running cell and start the clock."""
        from IPython.display import display

        display(self.panel.widget, self.figure, self.rollouts.widget)
        self._thread.start()

    def close(self) -> None:
        """Stop the clock and take the widgets away; the run goes on."""
        self._closed.set()
        for widget in (self.panel.widget, self.figure, self.rollouts.widget):
            close_all(widget)

    def tick(self) -> None:
        """Bring all parts up to date once."""
        run = self.panel.run
        if run is not self.rollouts.run:
            self.rollouts.run = run
        self.panel.refresh()
        if not (run.path / "config.json").exists():
            return  # it failed before its first step and was removed; the panel says why
        seen = int(self.metrics["step"].max()) if len(self.metrics) else 0
        newest = run.last_step()
        if newest == seen:
            return
        new = run.metrics(since=seen + 1) if newest > seen else run.metrics()
        self.metrics = pd.concat([self.metrics, new], ignore_index=True) if newest > seen and seen else new
        self.figure.push(*figures.dashboard_data(self.metrics))
        self.rollouts.refresh(newest)
        self._show_learning_rate()

    def _show_learning_rate(self) -> None:
        if len(self.metrics) and {"learning_rate_base", "learning_rate"} <= set(self.metrics):
            base, in_force = (float(self.metrics[name].iloc[-1]) for name in ("learning_rate_base", "learning_rate"))
            self.panel.show_learning_rate(base, in_force)

    def _work(self) -> None:
        while not self._closed.wait(self._tick_s):
            try:
                self.tick()
            except Exception as error:  # a view must not die of one bad moment, nor print from a thread
                if not self._closed.is_set():
                    self.panel.report(f"The view could not be refreshed: {error}")


def close_all(widget: widgets.Widget) -> None:
    """Close a widget and all that is in it: a container that is closed leaves children, layouts and styles open."""
    inside = (*getattr(widget, "children", ()), getattr(widget, "layout", None), getattr(widget, "style", None))
    widget.close()
    for part in inside:
        if isinstance(part, widgets.Widget):
            close_all(part)
