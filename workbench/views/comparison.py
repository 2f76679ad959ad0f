"""Runs side by side: what a batch writes after each of them, as a table for programs and a page for people.

A record is a dict of plain values, as kept in the batch's folder: `name`, `arm`, `seed`, `varied` (name → value),
`status`, `reason`, `commit`, `facts` (see `run_facts`), `curves` (measure → points of `learning/curves.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from workbench.learning.curves import Curve, area, common_end, difference_to_first, kept_out_curve, value_at
from workbench.learning.statistics import interval
from workbench.run import Run
from workbench.views import figures
from workbench.views.display import folded, table_html
from workbench.views.report import figure_html, page

Record = Mapping[str, Any]

MEASURES = ("valid", "reward")
SUMMARY = ("valid_before", "valid_after", "reward_before", "reward_after", "steps", "seconds")
FACTS = (*SUMMARY, "executions", "valid_action_rate", *(f"valid_action_rate_{kind}" for kind in figures.KINDS))
COMPARED = {
    "area_valid": "area under valid drafts",
    "area_reward": "area under reward",
    "valid_after": "valid drafts after",
    "reward_after": "reward after",
    "executions": "executions",
}
"""Columns of the comparison of arms, with their titles."""
POINTS = 25
"""Numbers of executions at which mean curves are drawn."""


def run_facts(path: Path) -> tuple[dict[str, float], dict[str, list[tuple[float, float]]]]:
    """(what a run did, its curves on kept-out tasks by measure), read from its folder.

    `executions`; `valid_action_rate`, valid actions / all actions, whole and by kind; a rate without actions is absent.
    """
    run = Run(path)
    metrics, turns = run.metrics(), run.turns(columns=["kind", "verdict", "score"])
    turns = turns[turns["verdict"] != "infrastructure"]
    valid = turns["score"].notna()
    facts = {"executions": float(metrics["executions"].sum())} if "executions" in metrics else {}
    if len(turns):
        facts["valid_action_rate"] = float(valid.mean())
    for kind in figures.KINDS:
        if (of_kind := turns["kind"] == kind).any():
            facts[f"valid_action_rate_{kind}"] = float(valid[of_kind].mean())
    curves = {measure: kept_out_curve(metrics, measure) for measure in MEASURES}
    return facts, {measure: curve for measure, curve in curves.items() if len(curve) > 1}


def table(records: Sequence[Record]) -> pd.DataFrame:
    """One row per run: name, arm, seed, what is varied, status, facts, areas, commit, reason.

    `area_<measure>` is that under the curve up to `area_executions`, the executions that every finished run has.
    """
    until = _until(records)
    rows = []
    for record in records:
        varied = {name: value for name, value in record["varied"].items() if name not in ("arm", "seed")}
        row = {"run": record["name"], "arm": record["arm"], "seed": record["seed"], **varied}
        row |= {"status": record["status"], **{name: record["facts"].get(name) for name in FACTS}}
        for measure in MEASURES:
            curve = record["curves"].get(measure)
            row[f"area_{measure}"] = area(curve, until) if curve and until else None
        row["area_executions"] = until if record["curves"] else None
        rows.append(row | {"commit": record.get("commit"), "reason": record.get("reason")})
    return pd.DataFrame(rows)


def _until(records: Sequence[Record]) -> float | None:
    """Executions at which runs are compared; None where none was measured along training."""
    curves = [curve for record in records for curve in record["curves"].values()]
    return common_end(curves) if curves else None


def arms_table(runs: pd.DataFrame) -> pd.DataFrame:
    """One row per arm, in order: finished runs, then per measure the mean, its 95 % bootstrap interval over seeds, and
    the difference to the first arm over the seeds that both have, with its paired interval."""
    done = runs[runs["status"] == "done"]
    names = list(dict.fromkeys(runs["arm"]))
    measured = [name for name in COMPARED if done[name].notna().any()]
    rows = []
    for arm in names:
        row: dict[str, Any] = {"arm": arm, "runs": int((done["arm"] == arm).sum())}
        for name in measured:
            own, first = _by_seed(done, arm, name), _by_seed(done, names[0], name)
            row[name] = fmean(own.values()) if own else None
            row[f"{name} 95 %"] = _bounds(interval(list(own.values())))
            if arm != names[0]:
                pairs, difference, bounds = difference_to_first(first, own)
                row[f"{name} - {names[0]}"] = difference
                row[f"{name} - {names[0]} 95 %"] = f"{_bounds(bounds)} (n={pairs})" if bounds else "–"
        rows.append(row)
    return pd.DataFrame(rows)


def _by_seed(runs: pd.DataFrame, arm: str, name: str) -> dict[Any, float]:
    own = runs[(runs["arm"] == arm) & runs[name].notna()]
    return {seed: float(value) for seed, value in zip(own["seed"], own[name], strict=True)}


def _bounds(bounds: Sequence[float] | None) -> str:
    return "–" if bounds is None else f"{bounds[0]:.3g} to {bounds[1]:.3g}"


def mean_curves(records: Sequence[Record], measure: str) -> dict[str, tuple[list[float], list[float]]]:
    """Arm → (executions, mean value over its finished runs), up to the executions that every run has."""
    until = _until(records)
    found: dict[str, list[Curve]] = {}
    for record in records:
        if until and (curve := record["curves"].get(measure)):
            found.setdefault(record["arm"], []).append(curve)
    at = [float(x) for x in np.linspace(0, until or 0.0, POINTS)]
    return {arm: (at, [fmean(value_at(curve, x) for curve in curves) for x in at]) for arm, curves in found.items()}


def render(title: str, records: Sequence[Record], note: str = "") -> str:
    """The page: arms side by side, curves at equal executions, before and after, and every run."""
    runs = table(records)
    counts = ", ".join(f"{number} {status}" for status, number in runs["status"].value_counts().items())
    parts = [f"<p>{escape(note)}</p>" if note else "", f"<p>{len(runs)} runs: {escape(counts)}.</p>"]
    if (runs["status"] == "done").any():
        parts += [_arms(runs), _curves(records), _before_after(runs)]
    failed = runs.loc[runs["status"] == "failed", ["run", "reason"]].reset_index(drop=True)
    if len(failed):
        parts.append(f"<h2>Failed</h2>{table_html(failed)}")
    shown = runs.dropna(axis=1, how="all").reset_index(drop=True)
    parts.append(f"<h2>Every run</h2>{folded(table_html(shown), f'{len(runs)} rows, also in summary.csv')}")
    return page(title, "".join(parts))


def _arms(runs: pd.DataFrame) -> str:
    arms = arms_table(runs)
    blocks = []
    for name, title in COMPARED.items():
        columns = [column for column in arms if column == name or str(column).startswith(f"{name} ")]
        if columns:
            part = arms[["arm", "runs", *columns]]
            blocks.append(f"<h3>{escape(title[0].upper() + title[1:])}</h3>{table_html(part)}")
    note = (
        "Means over seeds with 95 % bootstrap intervals; differences to the first arm are paired by seed, n the number "
        "of pairs. An area is the mean height of the curve over executions on tasks kept out of training, up to the "
        "number of executions that every finished run has."
    )
    return f"<h2>Arms side by side</h2><p>{note}</p>{''.join(blocks)}"


def _curves(records: Sequence[Record]) -> str:
    drawn = []
    for measure, name in (("valid", "Valid drafts"), ("reward", "Reward of drafts")):
        series = mean_curves(records, measure)
        if series:
            figure = figures.lines(f"{name} on kept-out tasks", "executions", "mean over seeds (0 to 1)", series)
            at = next(iter(series.values()))[0]
            numbers = pd.DataFrame({"executions": at, **{arm: ys for arm, (_, ys) in series.items()}})
            drawn.append(figure_html(figure, figures.thin(numbers, 9).reset_index(drop=True)))
    return f"<h2>At equal executions</h2>{''.join(drawn)}" if drawn else ""


def _before_after(runs: pd.DataFrame) -> str:
    done = runs[(runs["status"] == "done") & runs["valid_after"].notna()]
    if done.empty:
        return ""
    columns = [name for name in SUMMARY if name.startswith(MEASURES)]
    means = done.groupby("arm", sort=False)[columns].mean()
    means.index.name = "arm"
    drawn = [
        figure_html(figures.before_after(means, "valid", "Valid drafts by arm", "share of drafts (0 to 1)"), means),
        figure_html(figures.before_after(means, "reward", "Reward of drafts by arm", "mean reward (0 to 1)"), None),
    ]
    return f"<h2>Before and after</h2>{''.join(drawn)}"
