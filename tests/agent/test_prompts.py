"""From a state to a prompt, from a completion to a script."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.agent.cards import Card, Column, card
from workbench.agent.completions import parse_code
from workbench.agent.prompts import (
    ANSWER,
    ASK,
    FULL_BUDGET,
    INSTRUCTION,
    KEPT_OUTPUT,
    TEMPLATE_RESERVE,
    error_line,
    messages,
    render,
    trim,
)
from workbench.sandbox.executor import Limits
from workbench.tasks.catalog import load_tasks
from workbench.tasks.mle import load_task
from workbench.types import Kind, State, WorkbenchError

SCRIPT = "import pandas as pd\ntrain = pd.read_csv('./input/train.csv')\nprint(len(train))\n"


def words(text: str) -> int:
    """A stand-in for a tokenizer that counts words and line ends."""
    return len(text.split()) + text.count("\n")


@pytest.fixture(scope="module")
def task():
    return load_tasks("loan-missing")[0]


# --- prompts


def test_a_draft_names_what_the_script_must_know(task) -> None:
    text = messages(State(task.id, Kind.DRAFT), task, budget=10_000, count=words)[0]["content"]
    assert f"Id: '{task.id_column}'" in text
    assert "'defaulted'" in text
    assert "Metric: auc, higher is better. Submit the probability of the positive class." in text
    assert task.description.strip() in text
    assert text.endswith(INSTRUCTION)


def test_a_small_budget_leaves_out_the_description_and_keeps_the_facts(task) -> None:
    text = messages(State(task.id, Kind.DRAFT), task, budget=FULL_BUDGET - 1, count=words)[0]["content"]
    assert task.description.strip() not in text
    assert "Metric: auc" in text
    assert "- 'income' " in text


def test_debugging_shows_script_and_error_improving_shows_score(task) -> None:
    debug = State(task.id, Kind.DEBUG, code=SCRIPT, error="ValueError: Input X contains NaN.\nmore")
    text = messages(debug, task, budget=10_000, count=words)[0]["content"]
    assert SCRIPT in text
    assert "It failed: ValueError: Input X contains NaN.\n" in text
    improve = State(task.id, Kind.IMPROVE, code=SCRIPT, score=0.71234567)
    assert "Its validation score: 0.7123. Improve it." in _content(improve, task)
    assert "not reported" in _content(State(task.id, Kind.IMPROVE, code=SCRIPT), task)


def _content(state: State, task, budget: int = 10_000) -> str:
    return messages(state, task, budget=budget, count=words)[0]["content"]


@pytest.mark.parametrize("kind", list(Kind))
def test_no_prompt_tells_hidden_numbers(task, kind: Kind) -> None:
    text = _content(State(task.id, kind, code=SCRIPT, error="KeyError: 'x'", score=0.5), task)
    for hidden in (task.thresholds.gold, task.thresholds.median):
        assert f"{hidden:.4f}" not in text
    assert "answers.csv" not in text


@given(st.integers(60, 400), st.sampled_from(list(Kind)), st.integers(1, 200))
@settings(max_examples=60, deadline=None)
def test_a_prompt_keeps_its_budget_or_says_how_much_it_needs(budget: int, kind: Kind, lines: int) -> None:
    task = load_tasks("flight-carrier")[0]
    state = State(task.id, kind, code="value = compute(1, 2, 3)\n" * lines, error="ValueError: " + "long " * 200)
    needed = words(_content(state, task, 10_000)) + TEMPLATE_RESERVE
    try:
        text = _content(state, task, budget)
    except WorkbenchError:
        with pytest.raises(WorkbenchError, match=f"max_prompt_tokens={budget} is too small"):
            _content(state, task, budget)
        assert needed > budget
        return
    assert words(text) + TEMPLATE_RESERVE <= budget
    assert text.endswith(INSTRUCTION)
    assert ("Previous script:\n```python\n" in text) == (kind is not Kind.DRAFT)


def test_what_is_left_out_of_a_long_script_is_its_middle(task) -> None:
    code = "".join(f"line_{n} = {n}\n" for n in range(200))
    text = _content(State(task.id, Kind.DEBUG, code=code, error="KeyError: 'x'"), task, 260)
    assert "line_0 = 0\n" in text
    assert "# …" in text
    assert "line_199 = 199\n" in text
    assert "line_100 = 100\n" not in text


def test_a_script_of_one_endless_line_is_cut_to_fit() -> None:
    """What a policy writes when it loses its way must not end a run."""
    task = load_tasks("storm-phase")[0]
    state = State(task.id, Kind.DEBUG, code="x = [" + "'ab', " * 400 + "\n", error="SyntaxError: '[' was never closed")
    text = messages(state, task, budget=384, count=lambda text: len(text) // 4)[0]["content"]
    assert "x = ['ab'" in text
    assert "It failed: SyntaxError" in text


def test_missing_values_and_text_are_counted_from_the_public_file(task) -> None:
    columns = {column.name: column for column in card(task).columns}
    assert task.id_column not in columns
    assert "defaulted" not in columns
    assert columns["housing"].kind == "text"
    assert columns["age"].kind == "int"
    assert sum(column.missing for column in columns.values()) > 0


def test_what_a_task_shows_is_read_again_when_it_changes(tmp_path: Path) -> None:
    folder = tmp_path / "task"
    shutil.copytree(load_tasks("loan-missing")[0].folder, folder)
    task = load_task(folder)
    before = card(task)
    assert card(task) == before
    path = folder / "public" / "train.csv"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-5]))
    assert card(task).train_rows == before.train_rows - 5


def test_the_target_is_the_one_that_the_task_names(tmp_path: Path) -> None:
    """A table for training may have further columns that the one for testing lacks."""
    folder = tmp_path / "task"
    shutil.copytree(load_tasks("loan-missing")[0].folder, folder)
    path = folder / "public" / "train.csv"
    table = pd.read_csv(path)
    table.insert(0, "paid_back", 1)
    table.to_csv(path, index=False)
    assert card(load_task(folder)).target.name == "defaulted"


# --- the full form

CARD = Card(
    metric="auc",
    higher_is_better=True,
    wants="probability",
    id_column="id",
    target=Column("y", "int", 0, 2, ("0", "1")),
    submission=("id", "y"),
    train_rows=900,
    test_rows=600,
    columns=(
        Column("age", "int", 3, 50, ("30", "40")),
        Column("job", "text", 0, 5, ("cook",)),
        *(Column(f"x{n}", "float", 0, 800, ("0.5",)) for n in range(100)),
    ),
    description="Who pays back?\n" + "Each row is a loan.\n" * 500,
    preview="id,age\n1,30\n",
    files=("train.csv (900 rows × 104 columns)",),
)
FEW = replace(CARD, columns=CARD.columns[:2], description="Who pays back?")


@pytest.mark.parametrize("kind", list(Kind))
def test_each_kind_is_asked_for_its_own_in_the_full_form_only(kind: Kind) -> None:
    state = State("t", kind, code=SCRIPT if kind is not Kind.DRAFT else "", error="KeyError: 'x'")
    text = render(state, FEW, budget=4096, count=words, limits=Limits(cpu_s=600, wall_s=900, memory_mb=8192))
    assert [asked in text for asked in ASK.values()] == [other is kind for other in ASK]
    assert "A run has 600 s of CPU time, 900 s in all, 8,192 MB of memory, and no network." in text
    assert "train.csv (900 rows × 104 columns)" in text
    assert "- 'age' int, 3 missing, 50 values, e.g. 30, 40\n- 'job' text, 5 values, e.g. 'cook'\n" in text
    assert text.endswith(ANSWER + INSTRUCTION)
    compact = render(state, FEW, budget=FULL_BUDGET - 1, count=words, limits=Limits())
    assert not any(asked in compact for asked in (*ASK.values(), ANSWER, "A run has", "Who pays back?"))


def test_the_compact_card_is_what_the_embedded_policy_was_trained_on() -> None:
    state = State("t", Kind.DEBUG, code="x = 1\n", error="KeyError: 'x'", output="more than fits")
    assert render(state, FEW, budget=384, count=words) == (
        "Predict 'y' for ./input/test.csv (600 rows), learn from ./input/train.csv (900 rows).\n"
        "Metric: auc, higher is better. Submit the probability of the positive class.\n"
        "./submission.csv has the columns of ./input/sample_submission.csv: 'id', 'y'\n"
        "Id: 'id'\nTarget: 'y' int\nColumns:\n- 'age' int, 3 missing\n- 'job' text, 5 values, e.g. 'cook'\n"
        "Previous script:\n```python\nx = 1\n```\nIt failed: KeyError: 'x'\n"
        "Write one Python script. It prints `Validation score: <float>` and writes ./submission.csv."
    )


def test_sections_are_given_up_by_priority() -> None:
    """The smaller the budget the less there is, the least important first; what is asked goes last."""
    output = "head of it " + "middle " * 400 + "tail of it"
    state = State("t", Kind.DEBUG, code=SCRIPT * 20, error="KeyError: 'x'", output=output)
    marks = ("First rows", "'x99'", "Each row is a loan.", "head of it", SCRIPT * 20, ASK[Kind.DEBUG])
    gone: list[str] = []
    for budget in range(40_000, FULL_BUDGET - 1, -512):
        text = render(state, CARD, budget=budget, count=len)
        assert len(text) + TEMPLATE_RESERVE <= budget
        assert "It failed: KeyError: 'x'\n" in text
        gone += [mark for mark in marks if mark not in text and mark not in gone]
    assert gone[:2] == ["First rows", "'x99'"]
    assert gone.index("Each row is a loan.") < gone.index(ASK[Kind.DEBUG])
    assert gone.index(SCRIPT * 20) < gone.index(ASK[Kind.DEBUG])
    full = render(state, FEW, budget=100_000, count=len)
    assert "head of it" in full
    assert "tail of it" in full
    assert len(output) > KEPT_OUTPUT > full.count("middle") * 7


def test_a_script_with_fences_in_it_is_fenced_by_more() -> None:
    state = State("t", Kind.IMPROVE, code='s = """\n```\n"""\n')
    text = render(state, FEW, budget=4096, count=words)
    assert f"Previous script:\n````python\n{state.code}````\n" in text
    assert parse_code(text.partition("Previous script:\n")[2]) == state.code


# --- pieces


@pytest.mark.parametrize(
    ("stderr", "line"),
    [
        ("", None),
        ("warming up\nnothing wrong", None),
        ("Traceback (most recent call last):\n  File 'x'\nValueError: bad\n", "ValueError: bad"),
        (
            "KeyError: 'a'\n\nDuring handling of…\n\nsklearn.exceptions.NotFittedError: not fitted\n",
            "sklearn.exceptions.",
        ),
        ("MyWarning: x\n  warn()\n", "MyWarning: x"),
    ],
)
def test_the_line_that_names_the_exception(stderr: str, line: str | None) -> None:
    found = error_line(stderr)
    assert found is None if line is None else found is not None and found.startswith(line)


@given(st.text(max_size=200), st.integers(0, 250))
@settings(deadline=None)
def test_trimming_keeps_both_ends_within_the_limit(text: str, limit: int) -> None:
    short = trim(text, limit)
    assert len(short) <= max(limit, 0)
    if len(text) > limit >= 8:
        assert " … " in short
        assert text.startswith(short.split(" … ")[0])
