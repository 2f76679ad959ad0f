"""From a state to a prompt within a token budget; the way back is in completions.py.

Everything a prompt says comes from the public files of the task and from the state; nothing hidden is read. A budget
below `FULL_BUDGET` gives a compact card, which the embedded policy was trained on; a larger one the full form, after
AIDE's prompts for drafting, debugging and improving: description, data preview, previous script and what came of it,
what to do now, limits, form of the answer. What does not fit is left out by priority, whole lines at a time, never
through a section's header; where not even that is enough, the compact card is what is left.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from workbench.agent.cards import Card, Column, card
from workbench.types import Kind, State, WorkbenchError

if TYPE_CHECKING:
    from workbench.sandbox.executor import Limits
    from workbench.tasks.task import Task

FULL_BUDGET = 1024
"""From this many prompt tokens on the full form is used."""
TEMPLATE_RESERVE = 24
"""Tokens left for the chat template's own marks; `agent/rollout.py: prompt_ids` counts what a larger one takes."""

WANTS = {
    "probability": "Submit the probability of the positive class.",
    "probabilities": "Submit one probability per class.",
    "label": "Submit class labels.",
    "number": "Submit numbers.",
}
INSTRUCTION = "Write one Python script. It prints `Validation score: <float>` and writes ./submission.csv."
INTRODUCTION = "You solve a machine-learning task by writing a Python script that is run and graded.\n"
ASK = {
    Kind.DRAFT: "Write a first solution: simple and sure to run. One model with the preprocessing that the columns "
    "need, no ensemble, no search over settings.\n",
    Kind.DEBUG: "Find the cause of the failure and mend it. Keep what works and change no more than is needed; an "
    "error that is caught and passed over is not mended.\n",
    Kind.IMPROVE: "Make one change that should better the validation score: a feature, the preprocessing, the model or "
    "its settings. Leave the rest as it is, so that the score shows what the change is worth.\n",
}
"""What is to be done in a state, by its kind; in the full form only."""
GUIDELINES = (
    "Use pandas and scikit-learn. Handle missing values and text columns. Estimate the metric on rows held out from "
    "train.csv, never on rows that the model has seen.\n"
)
ANSWER = "Say in two or three sentences what you do and why; then one ```python block that holds the whole script.\n"


class PromptTooLong(WorkbenchError):
    """Not even the smallest form of a prompt fits its budget."""


@dataclass(frozen=True, slots=True)
class _Detail:
    """How much of each trimmable section is shown."""

    full: bool
    description: int
    """Most characters of the description."""
    preview: bool
    examples: bool
    columns: int
    output: int
    code: int
    files: int = 16
    """Most files that are listed."""
    width: int | None = None
    """Most characters of a line of code."""


def messages(
    state: State, task: Task, *, budget: int, count: Callable[[str], int], limits: Limits | None = None
) -> list[dict[str, str]]:
    """One user message for `state` whose content, with `TEMPLATE_RESERVE`, has at most `budget` tokens under `count`.

    `limits` of a run are told in the full form. Raises `PromptTooLong` when not even the smallest form fits.
    """
    return [{"role": "user", "content": render(state, card(task), budget=budget, count=count, limits=limits)}]


def render(state: State, facts: Card, *, budget: int, count: Callable[[str], int], limits: Limits | None = None) -> str:
    """The message's text; see `messages`."""
    limit = budget - TEMPLATE_RESERVE
    text = ""
    for detail in _details(state, facts, full=budget >= FULL_BUDGET):
        text = _full(state, facts, detail, limits) if detail.full else _compact(state, facts, detail)
        if count(text) <= limit:
            return text
    raise PromptTooLong(
        f"max_prompt_tokens={budget} is too small for a {state.kind} of task '{state.task}': expected at least "
        f"{count(text) + TEMPLATE_RESERVE}, raise it."
    )


def _details(state: State, facts: Card, *, full: bool) -> Iterator[_Detail]:
    """From everything to almost nothing, in the order in which sections are given up."""
    columns, lines = len(facts.columns), len(state.code.splitlines())
    detail = _Detail(full, len(facts.description), full, True, columns, KEPT_OUTPUT if full else 0, 1_000_000)
    yield detail
    if full:
        for change in _FIRST_TO_GO:
            detail = replace(detail, **{name: min(getattr(detail, name), most) for name, most in change.items()})
            yield detail
        for cut in _fewer(lines, 24):
            yield replace(detail, code=cut)
        yield (detail := _Detail(False, 0, False, True, columns, 0, 1_000_000))
    detail = replace(detail, examples=False)
    yield detail
    while detail.columns > 6:
        detail = replace(detail, columns=max(6, detail.columns - 2))
        yield detail
    detail = replace(detail, files=4)
    yield detail
    for cut in _fewer(lines, 8):
        detail = replace(detail, code=cut)
        yield detail
    detail = replace(detail, columns=0)
    yield detail
    yield replace(detail, width=80)


PREVIEW_LINES = 24
"""Most lines of the first rows of a table: a cell may hold a whole text."""
KEPT_OUTPUT = 2000
"""Characters of a script's output in the full form, from its head and its tail."""

_FIRST_TO_GO: tuple[dict[str, int], ...] = (
    {"description": 6000},
    {"preview": False},
    {"output": 1000},
    {"columns": 60},
    {"description": 2000, "output": 500},
    {"columns": 20, "examples": False},
    {"description": 600, "output": 200},
    {"columns": 8, "files": 4},
    {"description": 0, "output": 0},
)
"""What the full form gives up, one after the other; the previous script is cut only after these."""


def _fewer(lines: int, least: int) -> Iterator[int]:
    """Three quarters of the lines of a script, again and again, down to `least`."""
    while lines > least:
        lines = max(least, lines * 3 // 4)
        yield lines


def _full(state: State, facts: Card, detail: _Detail, limits: Limits | None) -> str:
    parts = [INTRODUCTION, "\n# Task\n", _cut_text(facts.description, detail.description), _task_lines(facts)]
    parts += ["\n# Data\n", _file_lines(facts, detail.files), _column_lines(facts, detail)]
    if detail.preview and facts.preview:
        rows = (trim(line, 400) for line in facts.preview.splitlines()[:PREVIEW_LINES])
        parts.append(f"First rows of {facts.table}:\n" + "\n".join(rows) + "\n")
    if state.kind is not Kind.DRAFT:
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", state.code)), default=0))
        parts += ["\n# So far\n", f"Previous script:\n{fence}python\n", _cut_lines(state.code, detail.code, None)]
        parts.append(fence + "\n")
    parts += [_what_came(state, detail), "\n# Now\n", ASK[state.kind], GUIDELINES.replace("train.csv", facts.table)]
    return "".join([*parts, _limit_line(limits), "\n# Answer\n", ANSWER, INSTRUCTION])


def _compact(state: State, facts: Card, detail: _Detail) -> str:
    files = [_file_lines(facts, detail.files)] if facts.competition else []
    parts = [*files, _task_lines(facts), _column_lines(facts, detail)]
    if state.kind is not Kind.DRAFT:
        parts.append("Previous script:\n```python\n" + _cut_lines(state.code, detail.code, detail.width) + "```\n")
    return "".join([*parts, _what_came(state, detail), INSTRUCTION])


def _what_came(state: State, detail: _Detail) -> str:
    """What came of the previous script; empty for a draft."""
    if state.kind is Kind.DRAFT:
        return ""
    if state.kind is Kind.DEBUG:
        return "It failed: " + _error_text(state) + "\n" + _output_lines(state, detail)
    score = "not reported" if state.score is None else f"{state.score:.4g}"
    return f"Its validation score: {score}. Improve it.\n" + _output_lines(state, detail)


def _limit_line(limits: Limits | None) -> str:
    if limits is None:
        return "A run has little CPU time and memory, and no network.\n"
    return (
        f"A run has {limits.cpu_s:g} s of CPU time, {limits.wall_s:g} s in all, {limits.memory_mb:,} MB of memory, and "
        "no network.\n"
    )


def _cut_text(text: str, limit: int) -> str:
    """The first lines of a text, as many as have at most `limit` characters in all; a paragraph on one long line, which
    would leave more than half of that unused, is cut itself."""
    if len(text) <= limit or limit == 0:
        return text + "\n\n" if text and limit else ""
    kept, used = [], 0
    for line in text.splitlines():
        if used + len(line) + 1 > limit:
            kept += [line[: limit - used]] if used < limit // 2 else []
            break
        kept.append(line)
        used += len(line) + 1
    return "\n".join(kept) + "\n…\n\n"


def _file_lines(facts: Card, most: int) -> str:
    """What lies in ./input, `most` entries of it; empty where the card names no files."""
    left = len(facts.files) - most
    lines = [*facts.files[:most], *([f"{left} more entries"] if left > 0 else [])]
    return "Files in ./input (read-only):\n" + "".join(f"- {line}\n" for line in lines) if lines else ""


def _task_lines(facts: Card) -> str:
    direction = "higher" if facts.higher_is_better else "lower"
    metric = f"Metric: {facts.metric}, {direction} is better. {WANTS.get(facts.wants, '')}\n"
    header = ", ".join(f"'{name}'" for name in facts.submission[:12])
    more = f", … {len(facts.submission) - 12} more" if len(facts.submission) > 12 else ""
    if facts.competition:
        return f"{metric}./submission.csv has the columns {header}{more}\n"
    target = facts.target
    return (
        f"Predict '{target.name}' for ./input/test.csv ({facts.test_rows} rows), learn from ./input/train.csv "
        f"({facts.train_rows} rows).\n{metric}"
        f"./submission.csv has the columns of ./input/sample_submission.csv: {header}{more}\n"
        f"Id: '{facts.id_column}'\n"
        f"Target: '{target.name}'{_facts(target, examples=True)}\n"
    )


def _facts(column: Column, *, examples: bool) -> str:
    text = f" {column.kind}"
    if column.missing:
        text += f", {column.missing} missing"
    if column.kind == "text":
        text += f", {column.distinct} values"
        if examples and column.examples:
            text += f", e.g. '{column.examples[0]}'"
    return text


def _all_facts(column: Column, *, examples: bool) -> str:
    """As `_facts`, with the number of different values and the most frequent ones of every column."""
    text = f" {column.kind}" + (f", {column.missing:,} missing" if column.missing else "")
    text += f", {column.distinct:,} values"
    if examples and column.examples:
        quote = "'" if column.kind == "text" else ""
        text += ", e.g. " + ", ".join(f"{quote}{value}{quote}" for value in column.examples)
    return text


def _column_lines(facts: Card, detail: _Detail) -> str:
    if facts.competition and not facts.columns:
        return ""
    shown = facts.columns[: detail.columns]
    of = _all_facts if detail.full else _facts
    lines = [f"- '{column.name}'{of(column, examples=detail.examples)}\n" for column in shown]
    left = facts.columns[detail.columns :]
    if left:
        texts = sum(column.kind == "text" for column in left)
        missing = sum(column.missing > 0 for column in left)
        lines.append(f"- {len(left)} more columns: {texts} text, {missing} with missing values\n")
    return (f"Columns of {facts.table}:\n" if facts.competition else "Columns:\n") + "".join(lines)


def _output_lines(state: State, detail: _Detail) -> str:
    output = trim(state.output.strip(), detail.output)
    return f"Its output:\n{output}\n" if output else ""


def _cut_lines(code: str, limit: int, width: int | None) -> str:
    """At most `limit` lines of a script, from both ends, with a comment where lines are left out."""
    lines = [line if width is None else trim(line, width) for line in code.strip("\n").splitlines()]
    if len(lines) > limit:
        head, tail = limit - limit // 2, limit // 2
        lines = [*lines[:head], "# …", *lines[len(lines) - tail :]]
    return "\n".join(lines) + "\n"


def _error_text(state: State) -> str:
    line = state.error.strip() or error_line(state.output) or "no valid submission"
    return trim(" ".join(line.splitlines()[0].split()), 110)


_ERROR = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning)\b")


def error_line(stderr: str) -> str | None:
    """The last line that names an exception; of a message of several lines it is the first that is taken."""
    lines = [line.strip() for line in stderr.splitlines()]
    return next((line for line in reversed(lines) if _ERROR.match(line)), None)


def trim(text: str, limit: int) -> str:
    """`text` with its middle left out so that at most `limit` characters remain."""
    if len(text) <= limit:
        return text
    if limit < 8:
        return text[:limit] if limit > 0 else ""
    head = (limit - 3) * 2 // 3
    return text[:head] + " … " + text[len(text) - (limit - 3 - head) :]
