from __future__ import annotations

import threading
from typing import Any

import pytest

from workbench.config import Config, knobs
from workbench.control import Control, StopRequested
from workbench.run import Run
from workbench.types import WorkbenchError
from workbench.views.live import close_all
from workbench.views.panel import SLIDERS, Panel


@pytest.fixture
def panel(run: Run) -> Panel:
    return Panel(run, Control(run.config))


def outcome(panel: Panel, knob: str) -> str:
    return panel.outcomes[knob].value


def test_every_knob_has_a_widget_with_its_meaning(panel: Panel) -> None:
    assert panel.knobs.keys() == knobs().keys()
    for name, spec in knobs().items():
        widget = panel.knobs[name]
        assert spec["description"] in widget.tooltip
        assert widget.style.description_width in ("initial", "17em")
        assert not widget.continuous_update
        assert name in widget.description
    for name in SLIDERS:
        if name != "learning_rate":
            assert panel.knobs[name].value == getattr(panel.control.config, name)


def test_a_slider_set_from_code_asks_once_with_the_new_value(panel: Panel) -> None:
    panel.knobs["temperature"].value = 1.3
    (request,) = panel.control.record()
    assert (request.knob, request.old, request.new, request.source) == ("temperature", 1.0, 1.3, "panel")
    assert "1.3 pending → applies at the next step" in outcome(panel, "temperature")


def test_nothing_but_a_knobs_value_asks(panel: Panel) -> None:
    for widget in panel.knobs.values():
        widget.disabled = True
        widget.description += " (locked)"
        widget.tooltip = "changed"
        widget.layout.width = "20em"
    assert panel.control.record() == []


def test_pending_becomes_applied_at_a_step(panel: Panel) -> None:
    panel.control.start()
    panel.control.boundary(1)
    panel.knobs["rho_end"].value = 2.0
    assert "pending → applies at the next step" in outcome(panel, "rho_end")
    assert panel.control.boundary(2).rho_end == 2.0
    panel.refresh()
    assert "2 applied at step 2" in outcome(panel, "rho_end")
    assert len(panel.control.record()) == 1


def test_a_refused_value_is_said_and_taken_back(panel: Panel) -> None:
    panel.knobs["steps"].value = -4
    assert "refused" in outcome(panel, "steps")
    assert panel.knobs["steps"].value == panel.control.config.steps
    assert not panel.control.pending()


def test_values_set_by_others_are_shown_and_not_asked_again(panel: Panel) -> None:
    panel.control.request("tau", 9, source="replay")
    panel.control.boundary(1)
    panel.refresh()
    assert panel.knobs["tau"].value == 9
    assert [request.source for request in panel.control.record()] == ["replay"]


def test_a_value_beyond_the_slider_is_kept(panel: Panel) -> None:
    panel.control.request("rho_end", 8.0, source="code")
    assert panel.control.boundary(1).rho_end == 8.0
    panel.refresh()
    panel.refresh()
    assert panel.control.config.rho_end == 8.0
    assert not panel.control.pending()
    assert "8 applied at step 1" in outcome(panel, "rho_end")


def test_buttons_follow_the_status(panel: Panel) -> None:
    def enabled() -> set[str]:
        panel.refresh()
        return {name for name, button in panel.buttons.items() if not button.disabled}

    panel.control.report(phase="acting")
    assert enabled() == {"pause", "step", "stop"}
    panel.press("pause")
    thread = threading.Thread(target=lambda: panel.control.boundary(1))
    thread.start()
    while panel.control.status != "paused":
        pass
    assert enabled() == {"start", "step", "stop"}
    panel.buttons["step"].click()
    thread.join(5)
    panel.press("stop")
    assert panel.control.status == "stopping"
    assert enabled() == set()
    with pytest.raises(StopRequested):
        panel.control.boundary(2)
    panel.control.finished(stopped=True)
    assert enabled() == {"start"}


def test_start_after_a_stop_restarts_once(run: Run) -> None:
    started: list[Control] = []

    def restart() -> tuple[Run, Control]:
        control = Control(run.config)
        control.report(phase="loading the policy")
        started.append(control)
        return run, control

    control = Control(run.config)
    control.report(phase="acting")
    control.finished(stopped=True)
    panel = Panel(run, control, restart)
    panel.press("start")
    panel.press("start")
    assert len(started) == 1
    assert panel.control is started[0]


def test_errors_of_the_run_and_of_a_button_are_shown_escaped(panel: Panel) -> None:
    panel.control.report(phase="acting")
    panel.control.finished(error="RuntimeError: <script>alert(1)</script>")
    panel.refresh()
    assert "&lt;script&gt;" in panel.status.value
    assert "<script>" not in panel.status.value
    panel.press("start")
    assert "run the cell that starts it again" in panel.status.value


def test_restart_that_fails_says_why(run: Run) -> None:
    def restart() -> tuple[Run, Control]:
        raise WorkbenchError("'runs/x' is written by process 7: stop it first.")

    control = Control(run.config)
    control.report(phase="x")
    control.finished(stopped=True)
    panel = Panel(run, control, restart)
    panel.press("start")
    assert "written by process 7" in panel.status.value


def test_status_line(panel: Panel) -> None:
    panel.control.report(phase="acting", step=2, done=3, total=8, reward=0.5, valid_action_rate=0.25, eta_s=30)
    panel.refresh()
    text = panel.status.value
    for part in ("step 2/5", "acting 3/8", "reward 0.50", "valid 0.25", "ETA 30 s", "isolation level A", "memory"):
        assert part in text
    assert panel.bar.value == pytest.approx(2 / 5)


def test_an_open_learning_rate_shows_the_trainers_choice(panel: Panel) -> None:
    panel.show_learning_rate(3e-5, 3e-5)
    assert panel.knobs["learning_rate"].value == pytest.approx(3e-5)
    assert "decay" not in outcome(panel, "learning_rate")
    assert not panel.control.record()
    panel.ask("tau", 9)
    panel.show_learning_rate(4e-5, 1e-5)
    assert panel.knobs["learning_rate"].value == pytest.approx(4e-5)
    panel.knobs["learning_rate"].value = 1e-3
    panel.show_learning_rate(4e-5, 1e-5)
    assert panel.knobs["learning_rate"].value == pytest.approx(1e-3)


def test_the_learning_rate_is_set_and_shown_before_its_decay(run: Run) -> None:
    """One notch up from what the slider shows raises the rate, however far it has decayed."""
    panel = Panel(run, Control(Config(learning_rate=1e-3)))
    panel.show_learning_rate(1e-3, 1e-4)
    slider = panel.knobs["learning_rate"]
    assert slider.value == pytest.approx(1e-3)
    assert "now 0.001 · 0.0001 in the last step, after decay" in outcome(panel, "learning_rate")
    slider.value *= 10**0.05
    (request,) = panel.control.pending()
    assert request.new > 1e-3
    panel.attach(run, Control(Config(learning_rate=1e-3)))
    assert "decay" not in outcome(panel, "learning_rate"), "another run has not said yet"


def test_a_quiet_panel_sends_nothing(run: Run, messages: Any) -> None:
    panel = Panel(run, Control(Config()))
    panel.refresh()
    before = len(messages.sent)
    panel._status_html = lambda *_: panel.status.value  # type: ignore[method-assign] # memory in use may change
    for _ in range(20):
        panel.refresh()
    assert len(messages.sent) == before


def test_a_panel_that_was_closed_may_still_be_refreshed(run: Run, messages: Any) -> None:
    """The dashboard's clock may be in the middle of its tick."""
    panel = Panel(run, Control(Config()))
    assert all(widget.comm is not None for widget in panel.knobs.values())
    close_all(panel.widget)
    before = len(messages.sent)
    assert all(widget.comm is None for widget in (*panel.knobs.values(), *panel.buttons.values(), panel.status))
    panel.control.request("tau", 9)
    panel.refresh()
    assert len(messages.sent) == before
