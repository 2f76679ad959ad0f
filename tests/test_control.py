from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.config import Config, knobs, make_config
from workbench.control import Control, StopRequested
from workbench.types import WorkbenchError


def control(**values: object) -> Control:
    return Control(make_config(**values))


class Trainer(threading.Thread):
    """The loop of a real trainer around nothing: what it saw of the settings, step by step."""

    def __init__(self, control: Control, step_s: float = 0.0) -> None:
        super().__init__(daemon=True)
        self.control, self.step_s = control, step_s
        self.configs: list[Config] = []
        self.events: list[dict] = []
        self.stopped = False

    def run(self) -> None:
        step = 1
        try:
            while True:
                config = self.control.boundary(step)
                if step > config.steps:
                    break
                time.sleep(self.step_s)
                self.configs.append(config)
                self.events += self.control.drain_events()
                self.control.report(phase="training", step=step, reward=0.5)
                step += 1
        except StopRequested:
            self.stopped = True
        self.events += self.control.drain_events()
        self.control.finished(stopped=self.stopped)


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.002)


# --- knobs


def test_a_request_is_pending_until_the_step_it_is_applied_at() -> None:
    c = control(tau=5)
    request = c.request("tau", 3)
    assert (request.outcome, request.old, request.new) == ("pending", 5, 3)
    assert c.config.tau == 5
    assert c.pending() == [request]
    assert c.boundary(4).tau == 3
    assert c.config.tau == 3
    assert c.pending() == []
    (event,) = c.drain_events()
    assert {k: event[k] for k in ("knob", "old", "new", "source", "outcome", "step")} == {
        "knob": "tau",
        "old": 5,
        "new": 3,
        "source": "user",
        "outcome": "applied",
        "step": 4,
    }
    assert c.drain_events() == []


@pytest.mark.parametrize(
    ("knob", "value", "sentence"),
    [
        ("temperature", 9, "temperature=9 is not accepted: expected a number from 0.1 to 5; give one, such as the"),
        ("temperature", float("nan"), "temperature=nan is not accepted"),
        ("temperature", "warm", "temperature='warm' is not accepted"),
        ("temperature", True, "temperature=True is not accepted: expected a number from 0.1 to 5"),
        ("group_size", 1, "group_size=1 is not accepted: expected a whole number from 2 to 256"),
        ("steps", 2.5, "steps=2.5 is not accepted"),
        ("temprature", 1.0, "'temprature' is no knob: did you mean 'temperature'?"),
        ("xyz", 1.0, "'xyz' is no knob: the knobs are steps, groups"),
        ("policy", "x", "'policy' is fixed during a run: set it before the start."),
        ("tau", None, "tau=None is not accepted"),
        ("tau", [1], "tau=[1] is not accepted"),
    ],
)
def test_a_bad_request_is_refused_with_a_sentence(knob: str, value: object, sentence: str) -> None:
    c = control()
    request = c.request(knob, value)
    assert request.outcome == "refused"
    assert sentence in request.reason
    assert "\n" not in request.reason
    assert c.boundary(1) == make_config()
    assert [e["outcome"] for e in c.drain_events()] == ["refused"]


def test_text_from_a_field_is_read_as_the_knobs_type() -> None:
    c = control()
    assert c.request("tau", "7").new == 7
    assert c.request("learning_rate", 1e-4).outcome == "pending"
    assert c.boundary(1).learning_rate == 1e-4
    assert c.request("learning_rate", None).outcome == "pending"


def test_an_equal_value_is_unchanged() -> None:
    c = control(tau=5)
    assert c.request("tau", 5).outcome == "unchanged"
    assert c.pending() == []


def test_the_last_of_several_requests_counts() -> None:
    c = control(tau=5)
    for value in (1, 2, 2, 5):
        c.request("tau", value)
    c.request("epsilon", 0.2)
    assert [r.new for r in c.pending()] == [5, 0.2]
    c.boundary(1)
    assert [(r.new, r.outcome) for r in c.record()] == [
        (1, "superseded"),
        (2, "superseded"),
        (2, "unchanged"),
        (5, "unchanged"),
        (0.2, "applied"),
    ]


def test_steps_may_be_extended_but_not_below_what_is_done() -> None:
    c = control(steps=5)
    for step in range(1, 5):
        c.boundary(step)
    assert "3 steps are done" in c.request("steps", 2).reason
    assert c.request("steps", 4).outcome == "pending"
    assert c.request("steps", 9).outcome == "pending"
    assert c.boundary(5).steps == 9


def test_every_knob_of_the_table_can_be_set() -> None:
    c = control()
    for name, declared in knobs().items():
        bounds = next(b for b in declared.get("anyOf", [declared]) if b.get("type") != "null")
        low = bounds.get("minimum", 0.5)
        assert c.request(name, low if low != getattr(c.config, name) else low + 1).outcome == "pending", name
    c.boundary(1)
    assert {r.outcome for r in c.record()} == {"applied"}


def test_the_record_is_bounded() -> None:
    c = control()
    for n in range(10_050):
        c.request("tau", n % 7)
    assert len(c.record()) == 10_000
    assert len(c.drain_events()) <= 10_000
    assert c.boundary(1).tau == 10_049 % 7


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("tau"), st.integers(-1, 4)),
            st.tuples(st.just("temperature"), st.sampled_from([0.5, 1.0, 9.0])),
            st.tuples(st.just("boundary"), st.none()),
        ),
        max_size=30,
    )
)
def test_the_record_retells_the_settings(actions: list[tuple[str, object]]) -> None:
    """Old values and outcomes in the events lead from the first settings to the last; every request is settled once."""
    c = control()
    step, shown = 0, c.config
    for name, value in [*actions, ("boundary", None)]:
        if name == "boundary":
            step += 1
            shown = c.boundary(step)
        else:
            c.request(name, value)
    told = make_config().model_dump()
    events = c.drain_events()
    for event in events:
        if event["outcome"] == "applied":
            assert told[event["knob"]] == event["old"] != event["new"]
            told[event["knob"]] = event["new"]
    assert told == shown.model_dump()
    numbers = [event["number"] for event in events]
    assert sorted(numbers) == [r.number for r in c.record()]
    assert [r.number for r in c.record()] == sorted(numbers)


# --- buttons


def test_a_run_goes_to_its_end() -> None:
    c = control(steps=3)
    trainer = Trainer(c)
    trainer.start()
    trainer.join(10)
    assert len(trainer.configs) == 3
    assert c.status == "finished"
    assert c.progress()["step"] == 3
    assert c.progress()["steps"] == 3


def test_pause_step_start_stop() -> None:
    c = control(steps=1000)
    assert c.status == "idle"
    c.pause()
    trainer = Trainer(c)
    trainer.start()
    wait_for(lambda: c.status == "paused")
    c.step()
    wait_for(lambda: len(trainer.configs) == 1 and c.status == "paused")
    c.step()
    c.step()
    wait_for(lambda: len(trainer.configs) == 3 and c.status == "paused")
    time.sleep(0.05)
    assert len(trainer.configs) == 3
    c.request("tau", 2)
    assert c.config.tau == 5
    c.step()
    wait_for(lambda: len(trainer.configs) == 4)
    assert trainer.configs[-1].tau == 2
    c.start()
    wait_for(lambda: len(trainer.configs) > 10)
    c.stop()
    trainer.join(10)
    assert trainer.stopped
    assert c.status == "idle"


def test_stop_ends_within_one_step_and_a_start_meanwhile_is_refused() -> None:
    c = control(steps=1000)
    trainer = Trainer(c, step_s=0.05)
    trainer.start()
    wait_for(lambda: len(trainer.configs) >= 2)
    c.stop()
    done = len(trainer.configs)
    assert c.status == "stopping"
    assert c.stop_requested
    with pytest.raises(WorkbenchError, match="is stopping: wait"):
        c.start()
    trainer.join(10)
    assert len(trainer.configs) <= done + 1
    c.start()  # after the end a new trainer may follow
    assert not c.stop_requested


def test_stop_ends_a_pause() -> None:
    c = control(steps=10)
    c.pause()
    trainer = Trainer(c)
    trainer.start()
    wait_for(lambda: c.status == "paused")
    c.stop()
    trainer.join(10)
    assert trainer.stopped
    assert trainer.configs == []


def test_stop_before_the_first_step() -> None:
    c = control()
    c.report(phase="loading the policy")
    assert c.status == "running"
    c.stop()
    assert c.status == "stopping"
    with pytest.raises(StopRequested):
        c.boundary(1)


def test_stop_after_the_end_changes_nothing() -> None:
    c = control()
    c.finished()
    c.stop()
    assert c.status == "finished"
    assert not c.stop_requested
    c.start()
    assert c.status == "finished"


def test_a_paused_run_that_is_shortened_ends() -> None:
    c = control(steps=1000)
    trainer = Trainer(c, step_s=0.01)
    trainer.start()
    wait_for(lambda: len(trainer.configs) >= 2)
    c.pause()
    wait_for(lambda: c.status == "paused")
    assert c.request("steps", len(trainer.configs)).outcome == "pending"
    trainer.join(10)
    assert c.status == "finished"


def test_a_run_paused_in_its_last_step_ends() -> None:
    c = control(steps=2)
    c.pause()
    trainer = Trainer(c)
    trainer.start()
    c.step()
    c.step()
    trainer.join(10)
    assert c.status == "finished"
    assert len(trainer.configs) == 2


def test_steps_added_while_running_are_run() -> None:
    c = control(steps=2)
    c.pause()
    trainer = Trainer(c)
    trainer.start()
    c.step()
    wait_for(lambda: len(trainer.configs) == 1 and c.status == "paused")
    c.request("steps", 6)
    c.start()
    trainer.join(10)
    assert len(trainer.configs) == 6


# --- progress


def test_progress_tells_phase_seconds_and_a_heartbeat() -> None:
    now = [100.0]
    c = Control(make_config(steps=7), clock=lambda: now[0])
    assert c.progress()["seconds"] == 0
    before = c.progress()["heartbeat"]
    c.report(phase="acting", done=1, total=8, reward=0.25)
    now[0] += 5
    progress = c.progress()
    assert progress["heartbeat"] >= before
    assert {k: progress[k] for k in ("phase", "done", "total", "reward", "steps", "seconds", "status", "eta_s")} == {
        "phase": "acting",
        "done": 1,
        "total": 8,
        "reward": 0.25,
        "steps": 7,
        "seconds": 5.0,
        "status": "running",
        "eta_s": None,
    }
    c.report(phase="updating")
    assert "done" not in c.progress()
    assert c.progress()["reward"] == 0.25
    c.finished(error="out of memory")
    assert c.status == "failed"
    assert c.progress()["error"] == "out of memory"


def test_the_time_to_go_falls_between_reports_stands_in_a_pause_and_is_unknown_once_it_is_over() -> None:
    now = [0.0]
    c = Control(make_config(steps=7), clock=lambda: now[0])
    c.report(phase="training", eta_s=60)
    now[0] = 20
    c.report(phase="acting")
    assert c.progress()["eta_s"] == 40
    c._waited += 15  # as a pause counts
    assert c.progress()["eta_s"] == 55
    now[0] = 100
    assert c.progress()["eta_s"] is None
    c.report(eta_s=5)
    assert c.progress()["eta_s"] == 5
    c.report(eta_s=None)
    assert c.progress()["eta_s"] is None


def test_the_step_going_on_is_told_from_the_last_one_done() -> None:
    c = Control(make_config(steps=2), clock=lambda: 0.0)
    assert c.progress()["running"] is None
    for step in (1, 2):
        c.boundary(step)
        assert (c.progress()["running"], c.progress()["step"]) == (step, step - 1)
        c.report(phase="training", step=step)
    c.boundary(3)
    assert (c.progress()["running"], c.progress()["step"]) == (None, 2), "what follows is no step"


# --- many threads


def test_many_threads_neither_block_nor_lose_requests() -> None:
    c = control(steps=100_000)
    trainer = Trainer(c)
    trainer.start()
    answers: list[int] = []

    def user(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(150):
            action = chance.choice(["request", "pause", "start", "step", "look"])
            if action == "request":
                answers.append(c.request("tau", chance.randrange(0, 50), source=f"user {seed}").number)
            elif action == "look":
                c.progress(), c.pending(), c.record()
            else:
                getattr(c, action)()

    users = [threading.Thread(target=user, args=(seed,)) for seed in range(8)]
    for thread in users:
        thread.start()
    for thread in users:
        thread.join(30)
        assert not thread.is_alive()
    c.stop()
    trainer.join(10)
    assert not trainer.is_alive()
    record = c.record()
    assert [r.number for r in record] == sorted(answers)
    settled = [e["number"] for e in trainer.events]
    assert len(settled) == len(set(settled))
    assert set(settled) | {r.number for r in c.pending()} == set(answers)
