"""What `workbench evaluate` found, as tables on stdout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

MEASURES = (
    "valid_rate any_medal gold silver bronze above_median human_rank position steps_to_first_valid valid_action_rate"
).split()
KINDS = ("draft", "debug", "improve")


def show(result: Mapping[str, Any]) -> None:
    """All tasks with their 95 % intervals, then each task; the budgets; what it is compared with; counts."""
    from rich.console import Console

    console = Console(highlight=False)
    _measures(console, result)
    _budgets(console, result)
    if "runs" in result:
        _runs(console, result)
    if "against" in result:
        _pairs(console, f"against {result['against']['subject']}", result["against"]["measures"])
    if "baseline" in result:
        fixed = result["baseline"]
        title = (
            f"against the best fixed script, '{fixed['script']}' (position {fixed['position_train']:.2f} in training)"
        )
        _pairs(console, title, fixed["measures"])
    _counts(console, result)


def number(value: float | None, digits: int = 2) -> str:
    """A number, or a dash where there is none."""
    return "–" if value is None else f"{value:.{digits}f}"


def bounds(values: Sequence[float] | None) -> str:
    """An interval, or a dash where there is none."""
    return "–" if values is None else f"{values[0]:.2f} – {values[1]:.2f}"


def _table(console: Console, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, title=title or None, title_justify="left")
    for place, name in enumerate(header):
        table.add_column(name, justify="right" if place else "left", no_wrap=not place)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _measures(console: Console, result: Mapping[str, Any]) -> None:
    tasks = result["tasks"]
    rows = [
        [name, number(result[name]), bounds(result[f"{name}_ci"]), *(number(task[name]) for task in tasks)]
        for name in (*MEASURES, *(f"valid_action_rate_{kind}" for kind in KINDS))
        if name in tasks[0]
    ]
    rows += [
        [name, number(result[name]), bounds(result[f"{name}_ci"]), *("" for _ in tasks)]
        for name in (f"valid_action_rate_{kind}" for kind in KINDS)
    ]
    rows.append(["template_share", number(result["template_share"]), "", *(number(t["template_share"]) for t in tasks)])
    _table(console, "", ["", "all", "95 %", *(task["id"] for task in tasks)], rows)


def _budgets(console: Console, result: Mapping[str, Any]) -> None:
    """The curve over budgets; beside it the position of what it is compared with; until when each rises."""
    other = result.get("against")
    rows = [
        [
            str(row["budget"]),
            number(row["position"]),
            bounds(row["position_ci"]),
            number(row["gain"]),
            bounds(row["gain_ci"]),
            *(number(row[name]) for name in ("any_medal", "human_rank", "valid_rate")),
        ]
        for row in result["curve"]
    ]
    header = ["steps", "position", "95 %", "gain", "95 %", "any medal", "human rank", "valid"]
    if other:
        header.append("against")
        rows = [[*row, number(theirs["position"])] for row, theirs in zip(rows, other["curve"], strict=True)]
    _table(console, "\nhad the attempts ended earlier", header, rows)
    for name, each in (("the position", result), (f"that of '{other['subject']}'" if other else "", other)):
        if each and each["rises_until"] is not None:
            console.print(_rise(name, each))


def _rise(name: str, result: Mapping[str, Any]) -> str:
    """Until when a curve rises, by the 95 % intervals of its gains."""
    until = result["rises_until"]
    if until > result["curve"][0]["budget"]:
        return f"{name} rises until {until} agent steps (95 % interval of the gain)"
    return f"no later step surely adds to {name}"


def _runs(console: Console, result: Mapping[str, Any]) -> None:
    rows = [[run["subject"], *(number(run[name]) for name in MEASURES)] for run in result["runs"]]
    _table(console, "\neach run", ["", *(name.replace("_", " ") for name in MEASURES)], rows)


def _pairs(console: Console, title: str, measures: Mapping[str, Mapping[str, Any]]) -> None:
    rows = [
        [
            name,
            number(row["ours"]),
            number(row["theirs"]),
            number(row["difference"]),
            bounds(row["difference_ci"]),
            bounds(row["difference_ci_tasks"]),
            number(row["p"], 4),
        ]
        for name, row in measures.items()
    ]
    _table(console, f"\n{title}", ["", "ours", "theirs", "difference", "95 %", "95 %, tasks too", "p"], rows)


def _counts(console: Console, result: Mapping[str, Any]) -> None:
    counts = f"{result['attempts']} attempts per task, {result['budget']} agent steps each"
    if "runs" in result:
        counts = f"{len(result['runs'])} runs, {counts}; intervals are over runs"
    if result["unscorable"]:
        console.print(
            f"{result['unscorable']} executions were lost by the sandbox and are left out, with "
            f"{result['attempts_lost']} attempts that ended early for that"
        )
    if result["seen"]:
        console.print(f"trained on {', '.join(result['seen'])}: no generalisation there")
    console.print("\nposition: 0 is the task's constant, 1 its gold threshold; an attempt without a submission has 0")
    console.print(f"{counts}; never valid counts as {result['budget'] + 1}: {result['censored_share']:.0%} of them")
