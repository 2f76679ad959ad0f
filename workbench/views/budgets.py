"""The score of attempts against the number of agent steps, as a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from workbench.views import figures

BOUNDS = (("lower end", "triangle-up", 0), ("upper end", "triangle-down", 1))


def budget_curve(curves: Mapping[str, Sequence[Mapping[str, Any]]], measure: str = "position") -> go.Figure:
    """One curve per name, of rows as `learning/measures.py: curve` makes them, with the ends of its 95 % intervals."""
    label = measure.replace("_", " ")
    title = f"{label.capitalize()} against the budget"
    layout = figures._layout(title, "agent steps", f"mean {label} (0 to 1)", yaxis={"range": [0, 1]})
    figure = go.Figure(layout=layout)
    for style, (name, rows) in enumerate(curves.items()):
        steps = [row["budget"] for row in rows]
        figure.add_trace(_line(steps, [row[measure] for row in rows], name, style, figures.MARKERS[style], 2.0))
        ends = [row[f"{measure}_ci"] for row in rows]
        if all(interval is not None for interval in ends):
            for end, marker, side in BOUNDS:
                figure.add_trace(
                    _line(steps, [interval[side] for interval in ends], f"{name}, {end}", style, marker, 0.7)
                )
    return figure


def _line(x: Sequence[int], y: Sequence[float], name: str, style: int, marker: str, width: float) -> go.Scatter:
    colour = figures.PALETTE[style]
    return go.Scatter(
        x=list(x),
        y=list(y),
        name=name,
        mode="lines+markers",
        line={"color": colour, "dash": figures.DASHES[style], "width": width},
        marker={"symbol": marker, "color": colour, "size": 6},
    )
