"""How a figure or a table stands in a notebook: one bundle that is readable with a kernel, without one, and in print.

A front end shows the richest part it knows: JupyterLab the plotly figure, a converter or a viewer without a kernel the
picture with its table. Nothing here needs a browser or the network.
"""

from __future__ import annotations

import base64
import json
from html import escape
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from workbench.views.svg import to_svg

CELL_STYLE = "padding:2px 8px;text-align:right;border-bottom:1px solid rgba(127,127,127,.3)"


def show(figure: go.Figure, table: pd.DataFrame | None = None) -> None:
    """Display a figure and, folded away below it, the table of its numbers."""
    from IPython.display import display

    display(bundle(figure, table), raw=True)
    if table is not None:
        show_html(folded(table_html(table), f"Numbers of “{_title(figure)}”"), plain=table.to_string())


def show_html(html: str, plain: str = "") -> None:
    """Display HTML with a plain-text twin."""
    from IPython.display import display

    display({"text/html": html, "text/plain": plain}, raw=True)


def bundle(figure: go.Figure, table: pd.DataFrame | None = None) -> dict[str, Any]:
    """One MIME bundle: plotly JSON, an SVG picture (also as HTML, with a name for screen readers), and plain text."""
    svg = to_svg(figure)
    encoded = base64.b64encode(svg.encode()).decode()
    title = escape(_title(figure), quote=True)
    return {
        "application/vnd.plotly.v1+json": {**json.loads(figure.to_json()), "config": {"displaylogo": False}},
        "image/svg+xml": svg,
        "text/html": f'<img alt="{title}" style="max-width:100%" src="data:image/svg+xml;base64,{encoded}">',
        "text/plain": _title(figure) if table is None else f"{_title(figure)}\n{table.to_string()}",
    }


def table_html(table: pd.DataFrame, *, digits: int = 3) -> str:
    """A DataFrame as a small HTML table: numbers rounded, everything escaped, missing values as a dash."""
    flat = table if isinstance(table.index, pd.RangeIndex) and table.index.name is None else table.reset_index()
    head = "".join(f'<th scope="col" style="{CELL_STYLE}">{escape(str(name))}</th>' for name in flat.columns)
    body = "".join(
        "<tr>" + "".join(f'<td style="{CELL_STYLE}">{_cell(value, digits)}</td>' for value in row) + "</tr>"
        for row in flat.itertuples(index=False, name=None)
    )
    return (
        '<table style="border-collapse:collapse;font-size:90%">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def folded(html: str, summary: str) -> str:
    """HTML behind a summary line that opens by click or key."""
    return f"<details><summary>{escape(summary)}</summary>{html}</details>"


def _cell(value: Any, digits: int) -> str:
    if value is None or value is pd.NA or (isinstance(value, float) and value != value):
        return "–"
    if isinstance(value, float):
        return f"{int(value)}" if value == int(value) and abs(value) < 1e15 else f"{value:.{digits}g}"
    return escape(str(value))


def _title(figure: go.Figure) -> str:
    return figure.layout.title.text or "figure"
