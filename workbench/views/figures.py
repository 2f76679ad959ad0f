"""Figures of a run: pure functions from the run's tables to `plotly` figures.

Each series has a colour of the Okabe-Ito palette, a dash and a marker of its own, so that a figure is readable without
colour; paper and plot are transparent and the ink is a mid grey, so that it is readable on light and on dark pages.
Columns are those of `Run.metrics()` (one row per step) and `Run.turns()` (one row per action).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#777777")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "solid", "dash", "dot")
MARKERS = ("circle", "square", "diamond", "triangle-up", "x", "triangle-down", "cross", "circle-open")
PATTERNS = ("", "/", "x", "\\", "-", ".", "|", "+")
INK = "#777777"
GRID = "rgba(127,127,127,0.25)"

VALID = "valid"
KINDS = ("draft", "debug", "improve")
MAX_POINTS = 400
"""Most points drawn per series; longer runs are thinned, the newest point always stays."""


def thin(table: pd.DataFrame, limit: int = MAX_POINTS) -> pd.DataFrame:
    """At most `limit` rows, evenly spaced, first and last kept."""
    if len(table) <= limit:
        return table
    rows = np.unique(np.linspace(0, len(table) - 1, limit).round().astype(int))
    return table.iloc[rows]


def smooth(values: pd.Series, window: int = 5) -> pd.Series:
    """Trailing mean over `window` steps; steps without a value (a kind that was not chosen) are left out of it."""
    return values.astype(float).rolling(window, min_periods=1).mean()


def _column(metrics: pd.DataFrame, name: str) -> pd.Series:
    if name in metrics:
        return metrics[name].astype(float)
    return pd.Series(np.full(len(metrics), np.nan), index=metrics.index, dtype=float)


def _line(x: Any, y: Any, name: str, style: int, **more: Any) -> go.Scatter:
    values = np.asarray(y, dtype=float)
    return go.Scatter(
        x=np.asarray(x),
        y=values,
        name=name,
        mode="lines+markers",
        line={"color": PALETTE[style], "dash": DASHES[style], "width": 2},
        marker={"symbol": MARKERS[style], "color": PALETTE[style], "size": 6, "maxdisplayed": 40},
        **more,
    )


def _axis(title: str, **more: Any) -> dict[str, Any]:
    base = {"title": {"text": title}, "gridcolor": GRID, "zeroline": False, "linecolor": INK, "automargin": True}
    return {**base, **more}


def _layout(
    title: str,
    x: str,
    y: str,
    *,
    xaxis: Mapping[str, Any] | None = None,
    yaxis: Mapping[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    return {
        "template": go.layout.Template(),
        "title": {"text": title, "font": {"size": 15}},
        "font": {"color": INK, "size": 12},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 60, "r": 20, "t": 70, "b": 50},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "height": 360,
        "xaxis": _axis(x, **(xaxis or {})),
        "yaxis": _axis(y, **(yaxis or {})),
        **more,
    }


def lines(title: str, x: str, y: str, series: Mapping[str, tuple[Any, Any]]) -> go.Figure:
    """One line per name of `series`: name → (x values, y values); y from 0 to 1."""
    figure = go.Figure(layout=_layout(title, x, y, yaxis={"range": [0, 1]}))
    for style, (name, (xs, ys)) in enumerate(series.items()):
        figure.add_trace(_line(xs, ys, name, style % len(PALETTE)))
    return figure


# ------------------------------------------------------------------------------------------------ learning


def learning_curve(metrics: pd.DataFrame) -> go.Figure:
    """Mean reward, share of valid actions, and that share by kind, against the step; trailing means over 5 steps."""
    figure = go.Figure(
        layout=_layout("Learning curve", "step", "reward, share of actions (0 to 1)", yaxis={"range": [0, 1]})
    )
    table = metrics.assign(**{name: smooth(_column(metrics, name)) for name, _ in _CURVES})
    table = thin(table)
    for style, (name, label) in enumerate(_CURVES):
        figure.add_trace(_line(_column(table, "step"), table[name], label, style))
    return figure


_CURVES = (
    ("reward_mean", "reward"),
    ("valid_action_rate", "valid, all"),
    ("valid_action_rate_draft", "valid, draft"),
    ("valid_action_rate_debug", "valid, debug"),
    ("valid_action_rate_improve", "valid, improve"),
)


def learning_table(metrics: pd.DataFrame, rows: int = 12) -> pd.DataFrame:
    """The numbers behind `learning_curve` (unsmoothed), thinned to `rows` steps."""
    names = [
        name for name in ("step", *(name for name, _ in _CURVES), "position_mean", "executions") if name in metrics
    ]
    return thin(metrics[names], rows)


def update_health(metrics: pd.DataFrame) -> go.Figure:
    """Loss, gradient norm, entropy, KL and clip shares, in four panels with one step axis each."""
    figure = go.Figure(layout=_grid_layout("Updates", _HEALTH, height=520))
    _add_panels(figure, thin(metrics), _HEALTH)
    return figure


# Panel: (title, y axis title, y range or None, ((column, label), …))
_Panel = tuple[str, str, list[float] | None, tuple[tuple[str, str], ...]]

_HEALTH: tuple[_Panel, ...] = (
    ("Loss", "loss", None, (("loss", "loss"),)),
    ("Gradient", "L2 norm before clipping", None, (("grad_norm", "gradient norm"),)),
    ("Distribution", "nats per token", None, (("entropy", "entropy"), ("kl_old", "KL to the old policy"))),
    (
        "Clipping and flat groups",
        "share (0 to 1)",
        [0, 1],
        (("clip_low_share", "clipped low"), ("clip_high_share", "clipped high"), ("flat_share", "flat groups")),
    ),
)

_LIVE: tuple[_Panel, ...] = (
    (
        "Reward and validity",
        "mean, share (0 to 1)",
        [0, 1],
        (("reward_mean", "reward"), ("valid_action_rate", "valid actions")),
    ),
    ("Valid actions by kind", "share (0 to 1)", [0, 1], tuple((f"valid_action_rate_{kind}", kind) for kind in KINDS)),
    ("Update", "nats, L2 norm", None, (("entropy", "entropy (nats)"), ("grad_norm", "gradient norm"))),
    (
        "Time per step",
        "seconds",
        None,
        (
            ("seconds", "whole step"),
            ("seconds_generate", "generate"),
            ("seconds_execute", "wait for executions"),
            ("seconds_update", "update"),
        ),
    ),
)


def dashboard(metrics: pd.DataFrame) -> go.Figure:
    """The live figure: four panels; always the same traces in the same order, whatever the table holds yet."""
    figure = go.Figure(layout=_grid_layout("", _LIVE, height=520))
    _add_panels(figure, _live_table(metrics), _LIVE)
    return figure


def dashboard_data(metrics: pd.DataFrame) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """x and y of every trace of `dashboard`, in its order, for one batched assignment."""
    table = _live_table(metrics)
    columns = [name for _, _, _, series in _LIVE for name, _ in series]
    step = _column(table, "step").to_numpy()
    return [step for _ in columns], [_column(table, name).to_numpy() for name in columns]


def _live_table(metrics: pd.DataFrame) -> pd.DataFrame:
    smoothed = {name: smooth(_column(metrics, name), 3) for _, _, _, series in _LIVE[:2] for name, _ in series}
    return thin(metrics.assign(**smoothed))


def _add_panels(figure: go.Figure, table: pd.DataFrame, panels: Sequence[_Panel]) -> None:
    style = 0
    for index, (_, _, _, series) in enumerate(panels):
        suffix = "" if index == 0 else str(index + 1)
        for name, label in series:
            place = {"xaxis": f"x{suffix}", "yaxis": f"y{suffix}", "legend": f"legend{suffix}"}
            figure.add_trace(_line(_column(table, "step"), _column(table, name), label, style % len(PALETTE), **place))
            style += 1
        style = 0 if index % 2 else style


def _grid_layout(title: str, panels: Sequence[_Panel], height: int) -> dict[str, Any]:
    layout = _layout(title, "step", panels[0][1], height=height, hovermode="x unified")
    titles = []
    for index, (name, unit, bounds, _) in enumerate(panels):
        column, row = index % 2, index // 2
        suffix = "" if index == 0 else str(index + 1)
        left, bottom = 0.54 * column, 0.56 * (1 - row)
        layout[f"xaxis{suffix}"] = _axis("step", domain=[left, left + 0.46], anchor=f"y{suffix}")
        layout[f"yaxis{suffix}"] = _axis(unit, domain=[bottom, bottom + 0.34], anchor=f"x{suffix}", range=bounds)
        layout[f"legend{suffix}"] = {
            "orientation": "h",
            "x": left,
            "y": bottom + 0.345,
            "yanchor": "bottom",
            "font": {"size": 11},
        }
        titles.append(_panel_title(name, left, bottom + 0.415))
    layout["annotations"] = titles
    layout["margin"] = {"l": 60, "r": 20, "t": 60 if title else 30, "b": 45}
    return layout


def _panel_title(text: str, x: float, y: float) -> dict[str, Any]:
    return {
        "text": f"<b>{text}</b>",
        "x": x,
        "y": y,
        "xref": "paper",
        "yref": "paper",
        "xanchor": "left",
        "yanchor": "bottom",
        "showarrow": False,
    }


# ------------------------------------------------------------------------------------------------ failures and time


def failure_table(turns: pd.DataFrame, bins: int = 20, kinds: int = 7) -> pd.DataFrame:
    """Share of actions by outcome per bin of steps (index); columns: `valid`, the commonest failures, `other`.

    Unscorable turns (verdict `infrastructure`) are left out. Rows sum to 1.
    """
    scorable = turns[turns["verdict"] != "infrastructure"] if "verdict" in turns else turns
    if scorable.empty:
        return pd.DataFrame(columns=[VALID])
    outcome = scorable["failure"].where(scorable["failure"].notna(), VALID).astype(str)
    common = [name for name in outcome.value_counts().index if name != VALID]
    kept = [VALID, *common[: kinds - 1]]
    outcome = outcome.where(outcome.isin(kept), "other")
    steps = scorable["step"].to_numpy()
    width = max(1, -(-(int(steps.max()) - int(steps.min()) + 1) // bins))
    start = int(steps.min()) + (steps - int(steps.min())) // width * width
    counts = pd.crosstab(start, outcome.to_numpy())
    order = [name for name in (*kept, "other") if name in counts]
    shares = counts[order].div(counts.sum(axis=1), axis=0)
    shares.index.name, shares.columns.name = "step", None
    return shares


def failure_shares(turns: pd.DataFrame) -> go.Figure:
    """What became of the actions, as stacked shares per bin of steps."""
    table = failure_table(turns)
    layout = _layout(
        "Outcome of the actions",
        "step (first of its bin)",
        "share of actions (0 to 1)",
        yaxis={"range": [0, 1]},
        barmode="stack",
        bargap=0.08,
    )
    figure = go.Figure(layout=layout)
    styles = _outcome_styles(table.columns)
    for name in table.columns:
        pattern = "" if name == VALID else PATTERNS[styles[name] or 2]
        steps = [str(step) for step in table.index]
        figure.add_trace(_bars(steps, table[name], str(name), styles[name], pattern=pattern))
    figure.update_xaxes(type="category")
    return figure


def _outcome_styles(names: Sequence[Any]) -> dict[Any, int]:
    """Style number of each outcome: `valid` is always green and plain (2), `other` grey (7)."""
    free = iter([0, 1, 3, 4, 5, 6])
    return {name: 2 if name == VALID else 7 if name == "other" else next(free, 7) for name in names}


def _bars(x: Any, y: Any, name: str, style: int, *, numbers: bool = False, pattern: str | None = None) -> go.Bar:
    hatch = {
        "shape": PATTERNS[style] if pattern is None else pattern,
        "fgcolor": "rgba(255,255,255,0.85)",
        "size": 7,
        "solidity": 0.25,
    }
    return go.Bar(
        x=list(x),
        y=np.asarray(y, dtype=float),
        text=[f"{value:.3g}" if np.isfinite(value) else "" for value in y] if numbers else None,
        textposition="outside" if numbers else None,
        name=name,
        marker={"color": PALETTE[style], "pattern": hatch, "line": {"color": INK, "width": 0.5}},
    )


def stage_table(metrics: pd.DataFrame, bins: int = 40, stages: int = 5) -> pd.DataFrame:
    """Mean seconds per step of the `stages` longest stages (columns) per bin of steps (index).

    Stages are the columns `seconds_<stage>`; the short ones and what no stage accounts for are `other`.
    """
    table = metrics[[name for name in metrics if name.startswith("seconds_")]].rename(columns=_stage_name)
    totals = table.sum()
    longest = totals[totals > 0.01 * totals.sum()].nlargest(stages).index
    table = table[[name for name in table if name in longest]].astype(float)
    parts = table.drop(columns="measure", errors="ignore")  # which `seconds` leaves out
    table["other"] = (_column(metrics, "seconds") - parts.sum(axis=1)).clip(lower=0)
    step = _column(metrics, "step")
    if step.empty:
        return table
    width = max(1.0, np.ceil((step.max() - step.min() + 1) / bins))
    start = (step.min() + (step - step.min()) // width * width).astype(int)
    table = table.groupby(start).mean()
    table.index.name = "step"
    return table


def _stage_name(column: str) -> str:
    return column.removeprefix("seconds_")


def stage_times(metrics: pd.DataFrame) -> go.Figure:
    """Seconds per step by stage, as stacked bars."""
    table = stage_table(metrics)
    figure = go.Figure(
        layout=_layout(
            "Time per stage",
            "step (first of its bin)",
            "seconds per step",
            barmode="stack",
            bargap=0.08,
            xaxis={"type": "category"},
        )
    )
    for style, name in enumerate(table.columns):
        figure.add_trace(
            _bars([str(step) for step in table.index], table[name], str(name), 7 if name == "other" else style)
        )
    return figure


# ------------------------------------------------------------------------------------------------ before and after


def measure_table(before: Mapping[str, Any], after: Mapping[str, Any]) -> pd.DataFrame:
    """Per task, and for the mean over tasks, what `learning/evaluate.py: measure_drafts` found before and after.

    Index: task; columns `<measure>_before`, `<measure>_after` for valid_action_rate, reward, position (NaN: no value).
    """
    measures = ("valid_action_rate", "reward", "position")
    rows = {task: (before["tasks"].get(task, {}), values) for task, values in after["tasks"].items()}
    rows["mean over tasks"] = (before, after)
    cells = {
        label: {f"{name}_{when}": pair[index].get(name) for name in measures for index, when in enumerate(_WHEN)}
        for label, pair in rows.items()
    }
    table = pd.DataFrame.from_dict(cells, orient="index").astype(float)
    table.index.name = "task"
    return table


def failure_change_table(before: Mapping[str, Any], after: Mapping[str, Any]) -> pd.DataFrame:
    """Share of all drafts per failure kind (index), commonest before first: `share_before`, `share_after`, `change`."""
    names = [*before["failures"], *(name for name in after["failures"] if name not in before["failures"])]
    shares = {
        f"share_{when}": [measured["failures"].get(name, 0) / max(measured["drafts"], 1) for name in names]
        for when, measured in zip(_WHEN, (before, after), strict=True)
    }
    table = pd.DataFrame(shares, index=pd.Index(names, name="failure"), dtype=float)
    return table.assign(change=table["share_after"] - table["share_before"])


_WHEN = ("before", "after")


def before_after(table: pd.DataFrame, column: str, title: str, unit: str) -> go.Figure:
    """Bars before and after training.

    `table`: index = label (task or failure kind), columns `<column>_before` and `<column>_after`.
    """
    figure = go.Figure(layout=_layout(title, "", unit, barmode="group", bargap=0.25, xaxis={"type": "category"}))
    labels = [str(label) for label in table.index]
    figure.add_trace(_bars(labels, table[f"{column}_before"], "before", 1, numbers=True))
    figure.add_trace(_bars(labels, table[f"{column}_after"], "after", 0, numbers=True))
    return figure
