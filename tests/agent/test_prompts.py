"""From a state to a prompt, from a completion to a script."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.agent.prompts import (
    FULL_BUDGET,
    INSTRUCTION,
    TEMPLATE_RESERVE,
    card,
    error_line,
    messages,
    trim,
)
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
