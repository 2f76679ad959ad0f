"""A run's curriculum reopened from snapshots and the events after them; what a step asks of the database; memory."""

from __future__ import annotations

import gc
import logging
import sqlite3
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from workbench.config import Config, change, make_config
from workbench.learning import pool, snapshots
from workbench.learning.pool import LONGEST_REST
from workbench.learning.ranking import Node
from workbench.learning.sampler import Curriculum
from workbench.run import Run
from workbench.types import (
    Action,
    Feedback,
    Group,
    Kind,
    Reward,
    State,
    StopReason,
    Turn,
    Verdict,
    WorkbenchError,
)

ROOTS = [State(f"task-{i}", Kind.DRAFT) for i in range(3)]
STEPS = 12
TRACEBACK = "Traceback (most recent call last):\n" + "  File 'script.py'\n" * 20


def settings(**values: Any) -> Config:
    return make_config({"steps": 100, "capacity": 30, "children_cap": 20, "tau": 2, **values})


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot every 15 events or so: one in two steps."""
    monkeypatch.setattr(snapshots, "LEAST", 15)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with Run.create(tmp_path / "run", settings(), {}) as run:
        yield run


def turn(state: State, number: int, reward: float) -> Turn:
    valid = reward > 0.5
    feedback = Feedback(
        Verdict.OK if valid else Verdict.RUNTIME_ERROR,
        f"print({number})\n" * 40,
        reason=None if valid else "NameError: x",
        stderr=TRACEBACK,
        score=reward if valid else None,
    )
    return Turn(state, Action("x", (1,), (-1.0,), 0, StopReason.EOS), feedback, Reward(reward), "g", f"g/{number}")


def step(run: Run, sampler: Curriculum, number: int, actions: int = 3) -> list[Group]:
    """What the trainer does with the curriculum and the run in a step."""
    chosen = sampler.choose(number, 2)
    groups = []
    for place, state in enumerate(chosen):
        turns = [turn(state, 1000 * number + 10 * place + n, n / actions) for n in range(actions)]
        groups.append(Group(f"g{place}", state, (1,), tuple(turns)))
    sampler.observe(number, groups)
    sampler.add(number, groups)
    run.commit(
        number,
        groups=groups,
        metrics=sampler.metrics(),
        curriculum_events=sampler.drain_events(),
        states=sampler.drain_states(),
        snapshot=sampler.drain_snapshot(),
    )
    return groups


def learned(run: Run, steps: int = STEPS) -> Curriculum:
    sampler = Curriculum(run.config, ROOTS, 100, run)
    for number in range(1, steps + 1):
        step(run, sampler, number)
    return sampler


def reopened(run: Run, live: Curriculum, roots: list[State] = ROOTS) -> Curriculum:
    sampler = Curriculum(run.config, roots, 100, run)
    sampler.reopen(run)
    sampler.load_state_dict(live.state_dict())
    return sampler


def assert_same(one: Curriculum, other: Curriculum) -> None:
    """Now, and in all that both do from now on."""
    for number in range(STEPS + 1, STEPS + 5):
        assert one.choose(number, 2) == other.choose(number, 2)
        assert one.snapshot() == other.snapshot()
        assert one.metrics() == other.metrics()
    assert one.drain_events() == other.drain_events()


def kept(run: Run) -> list[int]:
    return [number for number, _ in run.curriculum_snapshots()]


def damage(run: Run, query: str, *values: Any) -> None:
    connection = sqlite3.connect(run.path / "run.sqlite")
    with connection:
        assert connection.execute(query, values).rowcount
    connection.close()


# --- reopening


@pytest.mark.usefixtures("often")
def test_a_run_goes_on_from_its_snapshot_and_the_events_after_it(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    live = learned(run)
    latest = kept(run)[0]
    assert STEPS - 3 < latest <= STEPS
    read: list[int] = []
    events = Run.curriculum_events
    monkeypatch.setattr(Run, "curriculum_events", lambda run, since=0: (read.append(since), events(run, since))[1])
    with caplog.at_level(logging.INFO):
        again = reopened(run, live)
    assert read == [latest + 1]
    assert f"goes on from its snapshot of step {latest}" in caplog.text
    assert_same(live, again)


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(
    ("query", "values"),
    [
        ("UPDATE snapshots SET content = substr(content, 1, length(content) - 3) WHERE part = 'potential'", ()),
        (
            "UPDATE snapshots SET content = "
            "CAST(substr(content, 1, 12) || ? || substr(content, 14) AS BLOB) WHERE part = 'tie'",
            (b"\1",),
        ),
        ("UPDATE snapshots SET content = ? WHERE part = 'seen'", (b"",)),
        ("UPDATE snapshots SET content = (SELECT content FROM snapshots WHERE part = 'id') WHERE part = 'root'", ()),
        ("DELETE FROM snapshots WHERE part = 'head'", ()),
        ("DELETE FROM snapshots", ()),
    ],
)
def test_damaged_and_missing_snapshots_cost_time_and_nothing_else(
    run: Run, query: str, values: Any, caplog: pytest.LogCaptureFixture
) -> None:
    live = learned(run)
    damage(run, query, *values)
    again = reopened(run, live)
    if kept(run):
        assert "is damaged" in caplog.text
        assert "is passed over" in caplog.text
    assert "all its events were replayed" in caplog.text
    assert_same(live, again)


@pytest.mark.usefixtures("often")
def test_where_the_latest_is_damaged_the_one_before_is_taken(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    live = learned(run)
    latest, before = kept(run)[:2]
    damage(run, "DELETE FROM snapshots WHERE part = 'seen' AND step = ?", latest)
    with caplog.at_level(logging.INFO):
        again = reopened(run, live)
    assert f"snapshot of step {latest} is damaged" in caplog.text
    assert f"goes on from its snapshot of step {before}" in caplog.text
    assert_same(live, again)


@pytest.mark.usefixtures("often")
def test_a_snapshot_of_other_tasks_is_not_used(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    live = learned(run)
    roots = [*ROOTS[:2], State("new", Kind.DRAFT)]
    again = reopened(run, live, roots)
    assert "was taken of other tasks" in caplog.text
    counts = again.metrics()
    assert (counts["dropped_tasks"], counts["new_roots"]) == (1, 1)
    plain = Curriculum(run.config, roots, 100, run)
    plain.replay(run.curriculum_events())
    plain.load_state_dict(again.state_dict())
    plain.drain_events(), again.drain_events()
    assert_same(plain, again)


@pytest.mark.usefixtures("often")
def test_dropped_tasks_are_counted_from_a_snapshot_too(run: Run) -> None:
    live = learned(run, 6)
    fewer = reopened(run, live, ROOTS[:2])
    for number in range(7, STEPS + 1):
        step(run, fewer, number)
    assert kept(run)[0] > 7
    again = reopened(run, fewer, ROOTS[:2])
    assert again.metrics()["dropped_states"] == fewer.metrics()["dropped_states"] > 0
    assert_same(fewer, again)


@pytest.mark.usefixtures("often")
def test_going_back_drops_later_snapshots_and_one_for_the_oldest_checkpoint_is_kept(run: Run) -> None:
    sampler = Curriculum(run.config, ROOTS, 100, run)
    for number in range(1, STEPS + 1):
        step(run, sampler, number)
        if number % 4 == 0:
            run.save_checkpoint(number, lambda folder: (folder / "weights").write_text("w"))
    steps = kept(run)
    assert sum(number <= 4 for number in steps) == 1, "checkpoints of 4 and 8 were there when the last was taken"
    run.truncate(8)
    assert kept(run) == [number for number in steps if number <= 8]
    assert len(kept(run)) >= 2


def test_a_step_that_fails_leaves_no_snapshot(run: Run) -> None:
    with pytest.raises(TypeError):
        run.commit(1, snapshot={"head": b"x"}, knob_events=[{"bad": object()}])
    assert kept(run) == []
    run.commit(1, snapshot={"head": b"x"})
    assert list(run.curriculum_snapshots()) == [(1, {"head": b"x"})]


def test_a_lost_state_is_told(run: Run) -> None:
    live = learned(run, 2)
    child = next(node for node in live.buffer.nodes.values() if not node.root)
    damage(run, "DELETE FROM states WHERE id = ?", child.id)
    with pytest.raises(WorkbenchError, match=f"does not hold state {child.id}"):
        live.states([child.id])


# --- cost


def test_writing_snapshots_costs_an_event_the_same_however_long_the_run_is() -> None:
    """Rows written in all are bounded by a multiple of the events, whether states pile up or are evicted."""
    for capacity in (10**9, 4096):
        ever, since, written = 0, 0, 0

        class Sized:
            def __init__(self, size: int) -> None:
                self.size = size

            def __len__(self) -> int:
                return self.size

        while ever < 3_000_000:
            ever, since = ever + 512, since + 640
            buffer = Sized(min(ever, capacity))
            buffer.seen = Sized(ever)  # type: ignore[attr-defined]
            whole = type("Pool", (), {"buffer": buffer})
            if snapshots.due(since, whole):  # type: ignore[arg-type]
                written, since = written + len(buffer) + ever // 14, 0
        assert written < 6 * ever
        assert since <= 3_000_000 / 4 + 640


def test_what_a_state_says_is_not_in_memory(run: Run) -> None:
    """Bytes per state that Python has allocated, for the first and for the second ten thousand."""
    large = change(settings(), tau=0).model_copy(update={"capacity": 10**6, "children_cap": 10**6})
    sampler = Curriculum(large, ROOTS, 100, run)
    grown = []
    tracemalloc.start()
    for _ in range(2):
        before = tracemalloc.get_traced_memory()[0]
        for number in range(10_000):
            name = f"{len(sampler.buffer)} {number}"
            sampler.insert(1, State("task-0", Kind.DEBUG, name + "x" * 1500, "KeyError", TRACEBACK, parent=ROOTS[0].id))
            if number % 500 == 499:
                sampler.drain_events(), sampler.drain_states()
        grown.append((tracemalloc.get_traced_memory()[0] - before) / 10_000)
    tracemalloc.stop()
    assert len(sampler.buffer) == 20_003
    assert max(grown) < 700


def test_a_longer_rest_looks_at_the_states_chosen_lately_only(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = Curriculum(settings(tau=1, capacity=10**5, children_cap=10**5), ROOTS, 100)
    for number in range(3000):
        sampler.insert(1, State("task-0", Kind.DEBUG, str(number), parent=ROOTS[0].id))
    chosen = [{state.id for state in sampler.choose(number, 4)} for number in range(1, 20)]
    sampler.choose(22, 0)
    assert sampler.metrics()["buffer_resting"] == 0
    looked: list[Node] = []
    rests = pool.rests
    monkeypatch.setattr(pool, "rests", lambda node, step, tau: (looked.append(node), rests(node, step, tau))[1])
    sampler.update(settings(tau=6, capacity=10**5, children_cap=10**5))
    assert set(sampler._pool.resting) == set().union(*chosen[15:]), "chosen in steps 16 to 19"
    assert len(looked) == len(sampler._pool.resting) + 1


def test_nothing_of_an_evicted_state_is_held_but_its_identity() -> None:
    sampler = Curriculum(settings(), ROOTS, 100)
    gc.collect()
    before = sum(type(thing) is Node for thing in gc.get_objects())
    for number in range(1, 200):
        for child in range(10):
            sampler.insert(number, State("task-0", Kind.DEBUG, f"{number} {child}", parent=ROOTS[0].id))
        sampler.choose(number, 20)
        sampler.observe(number, [])
        sampler.drain_events()
    gc.collect()
    grown = sum(type(thing) is Node for thing in gc.get_objects()) - before
    assert grown == len(sampler.buffer) - len(ROOTS)
    assert len(sampler.buffer.seen) == len(ROOTS) + 1990


def test_no_rest_is_longer_than_what_is_remembered() -> None:
    assert change(settings(), tau=LONGEST_REST).tau == LONGEST_REST
    with pytest.raises(WorkbenchError):
        change(settings(), tau=LONGEST_REST + 1)


@pytest.mark.usefixtures("often")
def test_no_statement_of_a_step_or_a_resume_looks_at_all_rows(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every SQL statement that the run executes in its life, by SQLite's own plan for it; `meta` holds a few rows."""
    said: list[str] = []
    connect = sqlite3.connect

    def listening(*arguments: Any, **keywords: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **keywords)
        connection.set_trace_callback(said.append)
        return connection

    assert run._writer is not None
    run._writer.set_trace_callback(said.append)
    monkeypatch.setattr(sqlite3, "connect", listening)
    sampler = Curriculum(run.config, ROOTS, 100, run)
    for number in range(1, STEPS + 1):
        groups = step(run, sampler, number)
        run.store_result(f"key {number}", {"x": 1})
        assert run.result(f"key {number}")
        run.record_knobs(number + 1, [{"knob": "tau", "outcome": "applied"}])
        assert run.last_step() == number
        assert run.groups(number) == groups
    run.truncate(STEPS - 1)
    list(run.curriculum_events(STEPS - 2))
    next(run.curriculum_snapshots())
    monkeypatch.undo()
    plain = connect(run.path / "run.sqlite")
    statements = {text for text in said if text.lstrip().upper().startswith(("SELECT", "INSERT", "DELETE", "UPDATE"))}
    assert len(statements) > 50
    plans = {text: [row[3] for row in plain.execute(f"EXPLAIN QUERY PLAN {text}")] for text in statements}
    plain.close()
    scans = {text: plan for text, plan in plans.items() if any(line.startswith("SCAN") for line in plan)}
    few = ("SCAN meta", "SCAN snapshots", "SCAN CONSTANT ROW")
    assert not {text: plan for text, plan in scans.items() if not all(line.startswith(few) for line in plan)}
    assert not {text: plan for text, plan in plans.items() if any("TEMP B-TREE" in line for line in plan)}
