"""Φ by example, and which states are kept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from workbench.learning.buffer import KEPT_ERROR, KEPT_OUTPUT, Buffer, child, identity, signature, why_invalid
from workbench.learning.events import Added
from workbench.learning.ranking import Node
from workbench.types import Action, Feedback, Kind, State, StopReason, Turn, Verdict

ROOT = State("cars", Kind.DRAFT)
BROKEN = Feedback(
    Verdict.RUNTIME_ERROR,
    "import pandas\ntrain['x']\n",
    failure="wrong_column",
    reason="KeyError: 'x'",
    stdout="some output",
    stderr="Traceback …\nKeyError: 'x'",
)


def turn(feedback: Feedback, state: State = ROOT) -> Turn:
    return Turn(state, Action("text", (1,), (-1.0,), 0, StopReason.EOS), feedback, None, "g", "t")


def test_a_failure_becomes_a_debug_state() -> None:
    state = child(turn(BROKEN))
    assert state == State(
        "cars", Kind.DEBUG, BROKEN.code or "", "KeyError: 'x'", output=BROKEN.stderr, score=None, parent=ROOT.id
    )


def test_a_valid_submission_becomes_an_improve_state_without_its_hidden_score() -> None:
    feedback = Feedback(Verdict.OK, "code\n", stdout="Validation score: 0.5", score=0.123456, own_score=0.5)
    state = child(turn(feedback))
    assert state == State("cars", Kind.IMPROVE, "code\n", output=feedback.stdout, score=0.5, parent=ROOT.id)
    unscored = child(turn(replace(feedback, own_score=None, stdout="")))
    assert unscored is not None
    assert unscored.score is None
    assert "0.123456" not in repr(state)
    assert "0.123456" not in repr(unscored)


def test_an_invalid_submission_is_debugged_by_its_reason() -> None:
    feedback = Feedback(Verdict.INVALID_SUBMISSION, "code\n", reason="column 'y' is missing.", stdout="done")
    state = child(turn(feedback))
    assert state is not None
    assert (state.kind, state.error) == (Kind.DEBUG, "column 'y' is missing.")


def test_no_code_and_nothing_known_give_no_state() -> None:
    assert child(turn(Feedback(Verdict.RUNTIME_ERROR, None, failure="no_code"))) is None
    assert child(turn(replace(BROKEN, verdict=Verdict.INFRASTRUCTURE))) is None


def test_children_have_children() -> None:
    debug = child(turn(BROKEN))
    assert debug is not None
    improve = child(turn(Feedback(Verdict.OK, "better\n", score=1.0), debug))
    assert improve is not None
    assert improve.parent == debug.id


def test_long_output_is_trimmed_from_the_middle() -> None:
    state = child(turn(replace(BROKEN, stderr="a" * 5000 + "KeyError", reason="x" * 1000)))
    assert state is not None
    assert len(state.output) <= KEPT_OUTPUT
    assert state.output.endswith("KeyError")
    assert len(state.error) == KEPT_ERROR


def test_the_error_line_is_the_reason_or_the_last_line_or_the_verdict() -> None:
    assert why_invalid(BROKEN) == "KeyError: 'x'"
    assert why_invalid(replace(BROKEN, reason=None, stderr="first\n last  \n\n")) == "last"
    assert why_invalid(replace(BROKEN, reason=" ", stderr="")) == "runtime_error"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("<Model object at 0x7f10d04d43d0> failed", "<Model object at 0x55> failed"),
        ("No such file: '/tmp/run-1/input/x.csv'", "No such file: '/tmp/run-22/input/x.csv'"),
        ("X has 12 features, but needs 13", "X has 7 features, but needs 8"),
        ("got 0.25 at line 3", "got 1e-05 at line 44"),
    ],
)
def test_failures_that_differ_in_addresses_folders_and_numbers_are_equal(one: str, other: str) -> None:
    states = [State("cars", Kind.DEBUG, "code", error) for error in (one, other)]
    assert signature(one) == signature(other)
    assert identity(states[0]) == identity(states[1])
    assert states[0].id != states[1].id


def test_states_that_differ_in_what_matters_are_told_apart() -> None:
    base = State("cars", Kind.DEBUG, "code", "KeyError: 'x'")
    others = [
        replace(base, task="churn"),
        replace(base, kind=Kind.IMPROVE),
        replace(base, code="code2"),
        replace(base, error="KeyError: 'y'"),
        replace(base, error=""),
    ]
    assert len({identity(state) for state in (base, *others)}) == 6
    assert identity(replace(base, output="other", score=0.3, parent="p")) == identity(base)


# --- keeping


def keep(buffer: Buffer, state: State, potential: float, *, root: bool = False, tie: float = 0.5) -> None:
    buffer.insert(Added(0, state.id, identity(state), state.task, state.kind, state.parent, root, potential, tie))


def of(state: State) -> Node:
    """A node of the same class."""
    return Node(state.id, state.task, state.kind, None, root=False, potential=0.5, tie=0.5, since=0)


def debug(number: int, task: str = "cars", kind: Kind = Kind.DEBUG) -> State:
    return State(task, kind, f"code {number}", parent=State(task, Kind.DRAFT).id)


def test_beyond_the_cap_of_its_task_and_kind_the_lowest_of_them_goes() -> None:
    buffer = Buffer(capacity=100, children_cap=2)
    keep(buffer, ROOT, 0.0, root=True)
    keep(buffer, debug(0, "churn"), 0.0)
    keep(buffer, debug(0, kind=Kind.IMPROVE), 0.0)
    for number, potential in enumerate((0.3, 0.2, 0.5)):
        assert buffer.overflow(of(debug(number)), 0) is None
        keep(buffer, debug(number), potential)
    assert buffer.overflow(of(debug(2)), 0) == debug(1).id


def test_beyond_the_capacity_the_lowest_child_of_all_goes_and_roots_stay() -> None:
    buffer = Buffer(capacity=3, children_cap=100)
    keep(buffer, ROOT, 0.0, root=True)
    keep(buffer, debug(0, "churn"), 0.1)
    keep(buffer, debug(1), 0.4)
    keep(buffer, debug(2), 0.9)
    assert buffer.overflow(of(debug(2)), 0) == debug(0, "churn").id
    full = Buffer(capacity=1, children_cap=1)
    keep(full, ROOT, 0.0, root=True)
    keep(full, State("churn", Kind.DRAFT), 0.0, root=True)
    assert full.overflow(of(State("churn", Kind.DRAFT)), 0) is None


def test_what_was_removed_stays_known() -> None:
    buffer = Buffer(10, 10)
    keep(buffer, debug(0), 0.5)
    assert buffer.remove(debug(0).id).potential == 0.5
    assert debug(0).id not in buffer
    assert len(buffer) == 0
    assert identity(debug(0)) in buffer.seen
    assert identity(debug(1)) not in buffer.seen


def test_sizes_by_kind() -> None:
    buffer = Buffer(10, 10)
    keep(buffer, ROOT, 1.0, root=True)
    keep(buffer, debug(0), 0.5)
    keep(buffer, debug(1, "churn"), 0.5)
    keep(buffer, debug(2, kind=Kind.IMPROVE), 0.5)
    assert buffer.sizes() == {Kind.DRAFT: 1, Kind.DEBUG: 2, Kind.IMPROVE: 1}
