"""What attempts come to: medals, rank, validity, the score against the budget, and two policies side by side.

Every number is a table [seeds, tasks] first (`Measured`), so that intervals, pairs and means over runs are the same few
functions of `learning/statistics.py`. Attempts without a valid submission count as 0 in every measure but the steps to
the first valid one, which are then budget + 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.learning import statistics
from workbench.learning.attempts import Attempt
from workbench.learning.statistics import Table
from workbench.learning.templates import column_names, shares, template_measures
from workbench.tasks.leaderboard import human_rank
from workbench.tasks.task import Task, position, report
from workbench.types import Kind, WorkbenchError

FINAL = ("valid_rate", "any_medal", "gold", "silver", "bronze", "above_median", "human_rank", "position")
"""Measures of a final submission; `position` lies between the task's constant (0) and its gold threshold (1)."""
MEASURES = (*FINAL, "steps_to_first_valid")
"""Measures of an attempt."""
COMPARED = (*MEASURES, "valid_action_rate")
"""What two policies are compared by; the last is here the mean over attempts of an attempt's own rate."""
CURVE = ("position", "any_medal", "human_rank", "valid_rate")
"""What is told for every budget."""
BUDGETS = (1, 2, 4, 8, 16, 32)


def budgets_up_to(budget: int) -> tuple[int, ...]:
    """The budgets of a curve: powers of two up to 32, and the budget itself."""
    return tuple(sorted({step for step in BUDGETS if step <= budget} | {budget}))


@dataclass(frozen=True, slots=True)
class Measured:
    """The attempts of one policy, measured."""

    budget: int
    tasks: tuple[str, ...]
    tables: Mapping[str, Table]
    """Each of `COMPARED`: [attempts, tasks]."""
    curve: Mapping[int, Mapping[str, Table]]
    """Budget → each of `FINAL`, had the attempts ended there."""
    actions: Mapping[str, tuple[Table, Table]]
    """Kind, or "" for all: valid actions and actions, [attempts, tasks]."""
    reports: Mapping[str, list[dict[str, Any]]]
    """Task → the report of each attempt's final submission."""
    templates: Mapping[str, Counter[str]]
    """Task → its drafts' templates; "": of all tasks together."""
    drafts: Mapping[str, int]
    """Task, or "" → number of drafts."""
    failures: Counter[str]
    unscorable: int
    """Executions lost by us."""
    attempts_lost: int
    """Attempts left out for that."""
    attempts: int


def final_values(task: Task, graded: Mapping[str, Any]) -> dict[str, float]:
    """Each of `FINAL` for the report of one submission."""
    score = graded["score"]
    return {
        "valid_rate": float(graded["valid_submission"]),
        "any_medal": float(graded["any_medal"]),
        "gold": float(graded["gold_medal"]),
        "silver": float(graded["silver_medal"]),
        "bronze": float(graded["bronze_medal"]),
        "above_median": float(graded["above_median"]),
        "human_rank": 0.0 if score is None else human_rank(score, task.scores, task.higher_is_better),
        "position": 0.0 if score is None else position(task, score, "final"),
    }


def measure(attempts: Sequence[Attempt], budget: int) -> Measured:
    """Grade what attempts submitted, and would have submitted at smaller budgets, each distinct submission once.

    An attempt that ended before its budget because executions were lost by us says nothing of the policy and is left
    out. Raises WorkbenchError when all attempts at a task are.
    """
    tried = [attempt for attempt in attempts if attempt.steps and not (attempt.lost and attempt.steps < budget)]
    if missing := {attempt.task.id for attempt in attempts} - {attempt.task.id for attempt in tried}:
        raise WorkbenchError(
            f"No attempt at task '{min(missing)}' could be brought to its end, for the sandbox loses scripts: see what "
            "`workbench doctor` says."
        )
    names = tuple(sorted({attempt.task.id for attempt in tried}))
    seeds = sorted({attempt.seed for attempt in attempts})
    cells = {(attempt.seed, attempt.task.id): attempt for attempt in tried}
    curve = {step: _blank(FINAL, seeds, names) for step in budgets_up_to(budget)}
    tables = _blank(COMPARED, seeds, names)
    actions = {kind: (np.zeros((len(seeds), len(names))), np.zeros((len(seeds), len(names)))) for kind in ("", *Kind)}
    graded: dict[tuple[str, bytes | None], dict[str, Any]] = {}
    reports: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for (seed, name), attempt in sorted(cells.items()):
        row, column = seeds.index(seed), names.index(name)
        for step, values in curve.items():
            submission = attempt.after(step)
            if (name, submission) not in graded:
                graded[name, submission] = report(attempt.task, submission, None)
            for measure_name, value in final_values(attempt.task, graded[name, submission]).items():
                values[measure_name][row, column] = value
        reports[name].append(graded[name, attempt.after(budget)])
        tables["steps_to_first_valid"][row, column] = attempt.first_valid or budget + 1
        for act in attempt.acts:
            for kind in ("", act.kind.value):
                actions[kind][0][row, column] += act.valid
                actions[kind][1][row, column] += 1
        if attempt.acts:
            tables["valid_action_rate"][row, column] = actions[""][0][row, column] / actions[""][1][row, column]
    tables.update(curve[budget])
    return Measured(
        budget=budget,
        tasks=names,
        tables=tables,
        curve=curve,
        actions=actions,
        reports=reports,
        **_drafts(tried, names),
        failures=Counter(act.failure for attempt in tried for act in attempt.acts if act.failure),
        unscorable=sum(attempt.lost for attempt in attempts),
        attempts_lost=len(attempts) - len(tried),
        attempts=len(seeds),
    )


def _blank(names: Sequence[str], seeds: Sequence[int], tasks: Sequence[str]) -> dict[str, Table]:
    return {name: np.full((len(seeds), len(tasks)), np.nan) for name in names}


def _drafts(attempts: Sequence[Attempt], names: Sequence[str]) -> dict[str, Any]:
    """`templates` and `drafts` of a `Measured`."""
    templates: dict[str, Counter[str]] = {"": Counter(), **{name: Counter() for name in names}}
    drafts: Counter[str] = Counter()
    for attempt in attempts:
        codes = [act.code for act in attempt.acts if act.kind is Kind.DRAFT]
        found = template_measures(codes, column_names(attempt.task))
        for key in ("", attempt.task.id):
            templates[key].update(found)
            drafts[key] += len(codes)
    return {"templates": templates, "drafts": drafts}


def over_runs(measured: Sequence[Measured], tables: Sequence[Table]) -> Table:
    """One table of several: the rows of a single policy are its attempts, of several each policy's mean over them."""
    if len(measured) == 1:
        return tables[0]
    rows = [[_nanmean(column) for column in table.T] for table in tables]
    return np.array(rows, dtype=np.float64)


def _nanmean(values: Table) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")


def with_intervals(name: str, table: Table) -> dict[str, Any]:
    """`name`, `name_ci` (over seeds, tasks fixed) and `name_ci_tasks` (over both)."""
    return {
        name: statistics.mean(table),
        f"{name}_ci": statistics.interval(table),
        f"{name}_ci_tasks": statistics.interval(table, over_tasks=True),
    }


def summary(measured: Sequence[Measured]) -> dict[str, Any]:
    """The fields of `workbench evaluate` for one policy, or for several runs of one experiment, which are then the
    seeds of the intervals."""
    first = measured[0]
    totals: dict[str, Any] = {}
    for name in MEASURES:
        totals.update(with_intervals(name, over_runs(measured, [each.tables[name] for each in measured])))
    for kind in ("", *Kind):
        totals.update(_action_rate(measured, kind))
    first_valid = np.concatenate([each.tables["steps_to_first_valid"] for each in measured])
    known = first_valid[~np.isnan(first_valid)]
    return {
        "tasks": [_task(measured, place) for place in range(len(first.tasks))],
        **totals,
        "censored_share": float((known > first.budget).mean()),
        **_template_shares(measured, ""),
        "curve": curve(measured),
        "rises_until": rises_until(measured),
        "budget": first.budget,
        "attempts": first.attempts,
        "intervals_over": "attempts" if len(measured) == 1 else "runs",
        "failures": dict(sum((each.failures for each in measured), Counter[str]()).most_common()),
        "unscorable": sum(each.unscorable for each in measured),
        "attempts_lost": sum(each.attempts_lost for each in measured),
    }


def _action_rate(measured: Sequence[Measured], kind: str) -> dict[str, Any]:
    """Valid actions over all actions, of one kind or of all; None without one."""
    name = f"valid_action_rate_{kind}" if kind else "valid_action_rate"
    pairs = [each.actions[kind] for each in measured]
    if len(measured) == 1:
        valid, every = (counts.sum(axis=1) for counts in pairs[0])
    else:
        valid, every = (np.array([pair[side].sum() for pair in pairs]) for side in (0, 1))
    return {name: statistics.ratio(valid, every), f"{name}_ci": statistics.ratio_interval(valid, every)}


def _template_shares(measured: Sequence[Measured], task: str) -> dict[str, Any]:
    """Of one policy its own; of several the mean number and mean share, for each policy's scripts are its own."""
    found = [shares(each.templates[task], each.drafts[task]) for each in measured]
    if len(found) == 1:
        return dict(found[0])
    return {name: _mean_known([each[name] for each in found]) for name in found[0]}


def _mean_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _task(measured: Sequence[Measured], place: int) -> dict[str, Any]:
    name = measured[0].tasks[place]
    columns = {key: over_runs(measured, [each.tables[key][:, [place]] for each in measured]) for key in MEASURES}
    counts = [each.actions[""][side][:, place].sum() for side in (0, 1) for each in measured]
    half = len(measured)
    return {
        "id": name,
        "attempts": [row for each in measured for row in each.reports[name]],
        **{key: statistics.mean(table) for key, table in columns.items()},
        "valid_action_rate": statistics.ratio(counts[:half], counts[half:]),
        **_template_shares(measured, name),
    }


# ------------------------------------------------------------------------------------------------ budgets


def curve(measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """Each of `CURVE` with its intervals for every budget, and what the step from the budget before adds in
    `position`, pair by pair (None for the first)."""
    rows: list[dict[str, Any]] = []
    before: int | None = None
    for budget in measured[0].curve:
        row: dict[str, Any] = {"budget": budget}
        for name in CURVE:
            row.update(with_intervals(name, _at(measured, budget, name)))
        gain = None if before is None else statistics.paired(*(_at(measured, b, "position") for b in (budget, before)))
        row["gain"] = gain and gain["difference"]
        row["gain_ci"] = gain and gain["difference_ci"]
        rows.append(row)
        before = budget
    return rows


def _at(measured: Sequence[Measured], budget: int, name: str) -> Table:
    return over_runs(measured, [each.curve[budget][name] for each in measured])


def rises_until(measured: Sequence[Measured]) -> int | None:
    """How long the curve of `position` rises: from the first budget on to the next that is better by a paired interval
    that excludes 0, and so on; a dip between them counts for nothing. None without intervals."""
    budgets = list(measured[0].curve)
    highest = budgets[0]
    for budget in budgets:  # the first, against itself, tells whether there are intervals
        bounds = statistics.interval(_at(measured, budget, "position") - _at(measured, highest, "position"))
        if bounds is None:
            return None
        if bounds[0] > 0:
            highest = budget
    return highest


# ------------------------------------------------------------------------------------------------ pairs


def compare(ours: Sequence[Measured], theirs: Sequence[Measured]) -> dict[str, dict[str, Any]]:
    """Each of `COMPARED`: `ours`, `theirs` and `statistics.paired`, attempt by attempt with the same seeds.

    Both are as many, run by run; one policy that several runs are compared with is measured once for each of them, for
    otherwise its own luck would be in no interval. Raises ValueError when numbers, tasks, budget or attempts differ.
    """
    if len(theirs) != len(ours):
        raise ValueError(f"{len(ours)} policies and {len(theirs)} others make no pairs")
    for one, other in zip(ours, theirs, strict=True):
        if (one.tasks, one.budget, one.attempts) != (other.tasks, other.budget, other.attempts):
            raise ValueError("tasks, budget or attempts differ")
    result = {}
    for name in COMPARED:
        sides = [[each.tables[name] for each in side] for side in (ours, theirs)]
        gaps = over_runs(ours, [one - other for one, other in zip(*sides, strict=True)])
        means = [statistics.mean(over_runs(ours, tables)) for tables in sides]
        result[name] = {"ours": means[0], "theirs": means[1], **statistics.paired(gaps, np.zeros_like(gaps))}
    return result


def compare_with_constant(ours: Sequence[Measured], values: Mapping[str, Table]) -> dict[str, dict[str, Any]]:
    """`compare` with something that has no seeds: each of `FINAL`, [tasks]."""
    result = {}
    for name in FINAL:
        table = over_runs(ours, [each.tables[name] for each in ours])
        theirs = np.broadcast_to(values[name], table.shape)
        result[name] = {
            "ours": statistics.mean(table),
            "theirs": statistics.mean(values[name].reshape(1, -1)),
            **statistics.paired(table, theirs),
        }
    return result
