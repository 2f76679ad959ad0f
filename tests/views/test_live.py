from __future__ import annotations

import gc
import shutil
import time
import weakref
from typing import Any

import numpy as np
import pandas as pd
import pytest
from ipywidgets.widgets.widget import _instances

from workbench.control import Control
from workbench.run import Run
from workbench.views import figures, live
from workbench.views.live import Dashboard, LiveFigure


def test_a_hundred_updates_are_a_hundred_messages(messages: Any, table_of: Any) -> None:
    """Traces are made once, and each update of all of them is one message, which carries the whole data too."""
    table = table_of(100)
    figure = LiveFigure(figures.dashboard(table.iloc[:0]))
    traces = len(figure.data)
    before = len(messages.sent)
    for step in range(1, 101):
        figure.push(*figures.dashboard_data(table.iloc[:step]))
    assert len(messages.sent) - before == 100
    assert len(figure.data) == traces
    last = messages.updates()[-1]["state"]
    assert {"_widget_data", "_py2js_update"} <= last.keys()
    assert len(figure._widget_data[0]["x"]) == 100
    np.testing.assert_array_equal(figure.data[0].y, figures.dashboard_data(table)[1][0])


def test_a_long_run_stays_quick(messages: Any, table_of: Any) -> None:
    table = table_of(5000)
    figure = LiveFigure(figures.dashboard(table))
    started = time.perf_counter()
    figure.push(*figures.dashboard_data(table))
    assert time.perf_counter() - started < 0.2
    assert max(len(trace.x) for trace in figure.data) <= figures.MAX_POINTS


@pytest.fixture
def dashboard(run: Run, messages: Any) -> Any:
    dashboard = Dashboard(run, Control(run.config), tick_s=0.05)
    yield dashboard
    dashboard.close()


def test_the_clock_takes_in_new_steps_and_nothing_twice(dashboard: Dashboard, run: Run) -> None:
    assert list(dashboard.figure.data[0].x) == [1, 2, 3]
    dashboard._thread.start()
    run.commit(4, metrics={"reward_mean": 0.9, "learning_rate_base": 2e-4, "learning_rate": 1e-4})
    deadline = time.monotonic() + 10
    rate = dashboard.panel.knobs["learning_rate"]
    while (len(dashboard.figure.data[0].x) < 4 or rate.value < 1.5e-4) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert list(dashboard.figure.data[0].x) == [1, 2, 3, 4]
    assert list(dashboard.metrics["step"]) == [1, 2, 3, 4]
    assert rate.value == pytest.approx(2e-4), "the base, which is what the knob sets"
    assert "0.0001 in the last step" in dashboard.panel.outcomes["learning_rate"].value
    again = Dashboard(run, Control(run.config))
    assert again.panel.knobs["learning_rate"].value == pytest.approx(2e-4), "from its start on"
    again.close()


def test_a_run_that_failed_at_once_and_was_removed_is_no_second_error(dashboard: Dashboard, run: Run) -> None:
    run.close()
    shutil.rmtree(run.path)
    dashboard.panel.control.finished(error="no such policy")
    dashboard.tick()
    assert "no such policy" in dashboard.panel.status.value


def test_steps_taken_back_by_a_resume_disappear(dashboard: Dashboard, run: Run) -> None:
    run.truncate(1)
    dashboard.tick()
    assert list(dashboard.figure.data[0].x) == [1]


def test_rollouts_come_with_the_step(dashboard: Dashboard, run: Run) -> None:
    dashboard.rollouts.refresh(3)
    browser = dashboard.rollouts
    assert browser.step.value == 3
    assert len(browser.turn.options) == 4
    assert "SyntaxError: &lt;b&gt;bad" in browser.body.value
    assert "<script" not in browser.body.value
    browser.turn.index = 3
    assert "reward 0.60" in browser.body.value
    browser.follow.value = False
    browser.step.value = 1
    dashboard.rollouts.refresh(3)
    assert browser.step.value == 1


def test_a_second_dashboard_closes_the_first(dashboard: Dashboard, run: Run) -> None:
    dashboard._thread.start()
    other = Dashboard(run, Control(run.config))
    dashboard._thread.join(5)
    assert not dashboard._thread.is_alive()
    assert dashboard.figure.comm is None
    assert live._open is other
    other.close()


def test_a_closed_dashboard_leaves_no_widget_behind(run: Run, messages: Any) -> None:
    known = set(_instances)
    dashboard = Dashboard(run, Control(run.config), tick_s=0.05)
    dashboard._thread.start()
    assert len(set(_instances) - known) > 150
    panel = weakref.ref(dashboard.panel)
    dashboard.close()
    assert set(_instances) == known
    dashboard._thread.join(5)
    del dashboard
    live._open = None
    gc.collect()
    assert panel() is None, "its callbacks hold nothing"


def test_a_failing_view_says_so_and_lives_on(dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise OSError("disk <gone>")

    monkeypatch.setattr(dashboard, "tick", broken)
    dashboard._thread.start()
    deadline = time.monotonic() + 10
    while "disk" not in dashboard.panel.status.value and time.monotonic() < deadline:
        time.sleep(0.02)
    assert "disk &lt;gone&gt;" in dashboard.panel.status.value
    assert dashboard._thread.is_alive()


def test_empty_run(tmp_path: Any, messages: Any) -> None:
    from workbench.config import Config

    with Run.create(tmp_path / "new", Config(), {}) as run:
        dashboard = Dashboard(run, Control(run.config))
        dashboard.tick()
        run.commit(1, metrics={"reward_mean": 0.5})
        dashboard.tick()
        assert list(dashboard.figure.data[0].y) == [0.5]
        assert isinstance(dashboard.metrics, pd.DataFrame)
        dashboard.close()
