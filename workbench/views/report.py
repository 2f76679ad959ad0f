"""The report of a run: one HTML file that opens offline, prints well, and runs no script at all.

Figures are SVG with hover texts of their own, so nothing needs JavaScript; a content security policy in the page
forbids it, besides every text being escaped.
"""

from __future__ import annotations

import json
import os
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from workbench.run import Run
from workbench.types import WorkbenchError
from workbench.views import figures
from workbench.views.display import folded, table_html
from workbench.views.progress import duration
from workbench.views.svg import to_svg
from workbench.views.traces import readable, rollouts_html, sample

SAMPLES = 12
_OF_ALL_TURNS = "step position member verdict failure reward".split()
"""What is read of every turn; texts only of those that may be shown, for a long run has many."""

_STYLE = """
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#1b1b1b;background:#fff}
h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2.2rem;border-bottom:1px solid #bbb}
figure{margin:1.2rem 0}summary{cursor:pointer}pre{max-width:100%}
table{margin:.4rem 0}th{text-align:left;padding-right:1.5em;vertical-align:top}details{margin:.3rem 0}
@media (prefers-color-scheme:dark){body{color:#e6e6e6;background:#161616}}
@media print{body{max-width:none;margin:0}details{break-inside:avoid}figure{break-inside:avoid}}
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def write_report(run: Run, out: Path | None = None) -> Path:
    """Write the report (default `report.html` in the run's folder) and return its path; the file appears whole or not.

    Raises WorkbenchError when it cannot be written.
    """
    target = out or run.path / "report.html"
    if target.is_dir():
        raise WorkbenchError(f"'{target}' is a folder: name the report's file with --out, for example report.html.")
    aside = target.with_name(f".{target.name}.aside")
    try:
        aside.write_text(render(run), encoding="utf-8")
        os.replace(aside, target)
    except OSError as error:
        raise WorkbenchError(
            f"The report '{target}' cannot be written ({error.strerror}): choose another file with --out."
        ) from None
    return target


def render(run: Run) -> str:
    """The page as text."""
    metrics, turns = run.metrics(), run.turns(columns=_OF_ALL_TURNS)
    sections = [
        _summary(run, metrics),
        _before_after(run),
        _figures(metrics, turns),
        _samples(run, turns),
        _knobs(run),
        _settings("Settings at the start", run.config.model_dump()),
        _settings("Machine and versions", {**run.environment, "started": run.created}),
        _resumes(run),
    ]
    return page(f"Run {run.path.name}", "".join(sections))


def page(title: str, body: str) -> str:
    """A whole page that opens offline and runs no script, from a title as text and a body as HTML."""
    head = f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    head += f"<title>{escape(title)}</title><style>{_STYLE}</style>"
    foot = f"<p><small>Written {datetime.now():%Y-%m-%d %H:%M} by the GRPO workbench.</small></p>"
    body = f"<h1>{escape(title)}</h1>{body}{foot}"
    text = f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>'
    return text.encode("utf-8", "replace").decode("utf-8")


def _summary(run: Run, metrics: pd.DataFrame) -> str:
    summary: dict[str, Any] = run.meta("summary") or {}
    steps = int(metrics["step"].max()) if len(metrics) else 0
    facts: dict[str, Any] = {
        "policy": run.config.policy,
        "tasks": run.config.tasks,
        "steps": f"{steps} of {run.config.steps} planned at the start",
        "training time": duration(float(metrics["seconds"].sum())) if "seconds" in metrics else "–",
        "seed": run.config.seed,
        "isolation level of the sandbox": run.environment.get("isolation_level", "–"),
    }
    if "executions" in metrics:
        facts["programs executed"] = int(metrics["executions"].sum())
    for name, label in (("valid", "valid drafts on kept-out tasks"), ("reward", "reward of drafts on kept-out tasks")):
        if summary.get(f"{name}_after") is not None:
            facts[label] = f"{summary[f'{name}_before']:.3f} before → {summary[f'{name}_after']:.3f} after"
    state = "" if summary else "<p>The run has not reached its end; this is its state when the report was written.</p>"
    return f"<h2>Summary</h2>{state}{_pairs(facts)}"


def _before_after(run: Run) -> str:
    summary = run.meta("summary") or {}
    before, after = summary.get("before"), summary.get("after")
    if not before or not after:
        return ""
    table, failures = figures.measure_table(before, after), figures.failure_change_table(before, after)
    note = f"<p>{after['drafts']} single drafts at temperature 1 on tasks kept out of training, before and after.</p>"
    drawn = [
        figure_html(
            figures.before_after(table, "valid_action_rate", "Valid drafts by task", "share of drafts (0 to 1)"), table
        ),
        figure_html(figures.before_after(table, "reward", "Reward of drafts by task", "mean reward (0 to 1)"), None),
        figure_html(
            figures.before_after(failures, "share", "Failures of drafts by kind", "share of drafts (0 to 1)"), failures
        ),
    ]
    return f"<h2>Before and after</h2>{note}{''.join(drawn)}"


def _figures(metrics: pd.DataFrame, turns: pd.DataFrame) -> str:
    if metrics.empty:
        return "<h2>Training</h2><p>No step has been recorded yet.</p>"
    health = [name for name in ("step", "loss", "grad_norm", "entropy", "kl_old", "flat_share") if name in metrics]
    drawn = [
        figure_html(figures.learning_curve(metrics), figures.learning_table(metrics)),
        figure_html(figures.failure_shares(turns), figures.failure_table(turns)),
        figure_html(figures.update_health(metrics), figures.thin(metrics[health], 12)),
        figure_html(figures.stage_times(metrics), figures.stage_table(metrics, bins=12)),
    ]
    return f"<h2>Training</h2>{''.join(drawn)}"


def _samples(run: Run, turns: pd.DataFrame) -> str:
    note = "<p>Completions across the range of rewards, lowest first, as the policy wrote them.</p>"
    return f"<h2>Sample rollouts</h2>{note}{rollouts_html(sample(run, turns, SAMPLES))}"


def _knobs(run: Run) -> str:
    events = run.knob_events()
    if events.empty:
        return "<h2>Knobs turned</h2><p>None: the settings below held for the whole run.</p>"
    events = events.assign(at=[_clock(value) for value in events["at"]])
    return f"<h2>Knobs turned</h2>{table_html(events.reset_index(drop=True))}"


def _settings(title: str, values: dict[str, Any]) -> str:
    plain = {
        name: value if isinstance(value, str | int | float) else json.dumps(value, default=str)
        for name, value in values.items()
    }
    return f"<h2>{escape(title)}</h2>{folded(_pairs(plain), f'{len(plain)} entries')}"


def _resumes(run: Run) -> str:
    """What differed from the start of the run where it was gone on with; nothing when it was the same everywhere."""
    rows = [
        (entry["step"], name, str(run.environment.get(name)), str(entry["environment"].get(name)))
        for entry in run.meta("resumes") or []
        for name in entry["changed"]
    ]
    if not rows:
        return ""
    note = "<p>The run was gone on with elsewhere. It is not bit for bit what it would have been without a break.</p>"
    table = table_html(pd.DataFrame(rows, columns=["after step", "what differs", "at the start", "from then on"]))
    return f"<h2>Resumes that are not exact</h2>{note}{table}"


def _pairs(values: dict[str, Any]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{readable(name)}</th><td>{readable(value)}</td></tr>' for name, value in values.items()
    )
    return f"<table>{rows}</table>"


def figure_html(figure: go.Figure, table: pd.DataFrame | None) -> str:
    """A figure as SVG and, folded away below it, the table of its numbers."""
    twin = "" if table is None else folded(table_html(table), "Numbers")
    return f"<figure>{to_svg(figure, width=900, ink='currentColor')}{twin}</figure>"


def _clock(value: Any) -> str:
    try:
        return datetime.fromtimestamp(float(value)).strftime("%H:%M:%S")
    except (TypeError, ValueError):
        return str(value)
