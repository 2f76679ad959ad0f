"""A `plotly` figure as a small SVG, without a browser: lines, markers and bars on one or several panels.

This is the static twin of the interactive figures: it stands in notebooks opened without a kernel, on paper, and in
the report. It draws what `figures.py` makes (scatter and bar traces) and refuses the rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import plotly.graph_objects as go

from workbench.types import WorkbenchError

FONT = 12.0
_DASH = {"solid": "", "dash": "7,4", "dot": "2,3", "dashdot": "7,3,2,3", "longdash": "11,4"}
_STROKES = {
    "/": "M0,7 L7,0",
    "\\": "M0,0 L7,7",
    "x": "M0,7 L7,0 M0,0 L7,7",
    "-": "M0,3.5 L7,3.5",
    "|": "M3.5,0 L3.5,7",
    "+": "M0,3.5 L7,3.5 M3.5,0 L3.5,7",
    ".": "M3,3.5 L4,3.5",
}


@dataclass
class _Panel:
    """One pair of axes: the box it may fill (pixels), its traces, and the scales made from them."""

    box: tuple[float, float, float, float]
    traces: list[Any]
    xaxis: Any
    yaxis: Any
    title: str = ""
    categories: list[str] = field(default_factory=list)
    x_range: tuple[float, float] = (0.0, 1.0)
    y_range: tuple[float, float] = (0.0, 1.0)
    area: tuple[float, float, float, float] = (0.0, 0.0, 1.0, 1.0)

    def px(self, x: float) -> float:
        left, _, width, _ = self.area
        return left + (x - self.x_range[0]) / (self.x_range[1] - self.x_range[0]) * width

    def py(self, y: float) -> float:
        _, top, _, height = self.area
        return top + height - (y - self.y_range[0]) / (self.y_range[1] - self.y_range[0]) * height


def to_svg(
    figure: go.Figure, *, width: int = 760, height: int | None = None, ink: str = "#777777", label: str = ""
) -> str:
    """The figure as one `<svg>` element.

    `ink` colours text and axes ("currentColor" follows the page where the SVG stands inline); `label` is what a screen
    reader says. Raises `WorkbenchError` for a trace type other than scatter and bar.
    """
    height = int(height or figure.layout.height or 360)
    title = _plain(figure.layout.title.text)
    parts = [_pattern_defs(figure.data)]
    if title:
        parts.append(_text(8, 18, title, size=15, weight="bold"))
    for panel in _panels(figure, width, height, top=28 if title else 4):
        parts.extend(_draw(panel, figure.layout.barmode or "group", float(figure.layout.bargap or 0.2)))
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img"'
    style = f'style="max-width:100%;height:auto;color:{ink}" font-family="system-ui,sans-serif" fill="currentColor"'
    return f'{head} aria-label="{escape(label or title or "figure", quote=True)}" {style}>' + "".join(parts) + "</svg>"


# ------------------------------------------------------------------------------------------------ panels and scales


def _panels(figure: go.Figure, width: int, height: int, top: float) -> list[_Panel]:
    groups: dict[tuple[str, str], list[Any]] = {}
    for trace in figure.data:
        if trace.type not in ("scatter", "bar"):
            raise WorkbenchError(f"A '{trace.type}' trace has no static twin: expected scatter or bar.")
        groups.setdefault((trace.xaxis or "x", trace.yaxis or "y"), []).append(trace)
    titles = [_plain(note.text) for note in figure.layout.annotations or ()]
    panels = []
    for index, ((x, y), traces) in enumerate(groups.items()):
        xaxis, yaxis = figure.layout["xaxis" + x[1:]], figure.layout["yaxis" + y[1:]]
        panels.append(
            _Panel(
                _box(len(groups), index, width, height, top),
                traces,
                xaxis,
                yaxis,
                titles[index] if index < len(titles) else "",
            )
        )
        _scale(panels[-1], stacked=figure.layout.barmode == "stack")
    return panels


def _box(count: int, index: int, width: float, height: float, top: float) -> tuple[float, float, float, float]:
    if count == 1:
        return (0, top, width, height - top)
    rows = -(-count // 2)
    return (index % 2 * width / 2, top + index // 2 * (height - top) / rows, width / 2, (height - top) / rows)


def _scale(panel: _Panel, stacked: bool) -> None:
    bars = [trace for trace in panel.traces if trace.type == "bar"]
    if bars or panel.xaxis.type == "category":
        for trace in panel.traces:
            panel.categories.extend(str(x) for x in _values(trace.x) if str(x) not in panel.categories)
        panel.x_range = (-0.5, max(len(panel.categories), 1) - 0.5)
    else:
        panel.x_range = _span(_finite(x for trace in panel.traces for x in _values(trace.x)), pad=0.02)
    ys = _finite(y for trace in panel.traces for y in _values(trace.y))
    if bars:
        ys = [0.0, *(_stack_heights(panel) if stacked else ys)]
    panel.y_range = tuple(panel.yaxis.range) if panel.yaxis.range else _span(ys, pad=0.06, floor=0.0 if bars else None)
    left, box_top, width, height = panel.box
    legend = _legend_rows(panel)
    margin_left, margin_bottom = 62.0, 46.0 if _plain(panel.xaxis.title.text) else 30.0
    header = (24.0 if panel.title else 8.0) + 17.0 * len(legend)
    panel.area = (left + margin_left, box_top + header, width - margin_left - 14, height - header - margin_bottom)


def _stack_heights(panel: _Panel) -> list[float]:
    totals: dict[str, float] = {}
    for trace in panel.traces:
        for x, y in zip(_values(trace.x), _values(trace.y), strict=False):
            totals[str(x)] = totals.get(str(x), 0.0) + (y if math.isfinite(y) else 0.0)
    return list(totals.values())


def _span(values: Sequence[float], *, pad: float, floor: float | None = None) -> tuple[float, float]:
    if not values:
        return (0.0, 1.0)
    low, high = min(values), max(values)
    room = (high - low) * pad or abs(high) * 0.1 or 1.0
    return (floor if floor is not None and low >= floor else low - room, high + room)


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers inside [low, high], about `count` of them."""
    raw = (high - low) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(index * step, 12) for index in range(first, math.floor(high / step + 1e-9) + 1)]


# ------------------------------------------------------------------------------------------------ drawing


def _draw(panel: _Panel, barmode: str, gap: float) -> list[str]:
    left, top, width, height = panel.area
    parts = [*_axes(panel), *_legend(panel)]
    if panel.title:
        parts.append(_text(panel.box[0] + 8, panel.box[1] + 14, panel.title, weight="bold"))
    # A nested <svg> clips to its viewport without an id, which would clash with other figures on the page.
    view = f"{left - 5:.1f} {top - 5:.1f} {width + 10:.1f} {height + 10:.1f}"
    x, y, wide, high = view.split()
    parts.append(f'<svg x="{x}" y="{y}" width="{wide}" height="{high}" viewBox="{view}">')
    bars = [trace for trace in panel.traces if trace.type == "bar"]
    parts.extend(_bars(panel, bars, barmode, gap))
    for trace in panel.traces:
        if trace.type == "scatter":
            parts.append(_polyline(panel, trace))
    return [*parts, "</svg>"]


def _axes(panel: _Panel) -> Iterable[str]:
    left, top, width, height = panel.area
    for value in ticks(*panel.y_range):
        y = panel.py(value)
        yield f'<path d="M{left:.1f},{y:.1f}h{width:.1f}" stroke="currentColor" stroke-opacity="0.25"/>'
        yield _text(left - 6, y + 4, _number(value), size=11, anchor="end")
    if panel.categories:
        every = max(1, math.ceil(sum(len(name) + 2 for name in panel.categories) * 6.2 / width))
        labels = [(float(at), name) for at, name in enumerate(panel.categories) if at % every == 0]
    else:
        whole = all(value == int(value) for value in panel.x_range) or panel.x_range[1] - panel.x_range[0] > 4
        labels = [
            (value, _number(value))
            for value in ticks(*panel.x_range, int(width / 90) + 2)
            if not whole or value == int(value)
        ]
    for at, name in labels:
        yield _text(panel.px(at), top + height + 16, name, size=11, anchor="middle")
    yield f'<path d="M{left:.1f},{top:.1f} V{top + height:.1f} H{left + width:.1f}" fill="none" stroke="currentColor"/>'
    yield _text(left + width / 2, top + height + 35, _plain(panel.xaxis.title.text), anchor="middle")
    x, middle = panel.box[0] + 14, top + height / 2
    name = _text(x, middle, _plain(panel.yaxis.title.text), anchor="middle")
    yield f'<g transform="rotate(-90 {x:.1f} {middle:.1f})">{name}</g>'


def _polyline(panel: _Panel, trace: Any) -> str:
    color, symbol = trace.line.color, trace.marker.symbol or "circle"
    segments: list[list[tuple[float, float, float, float]]] = [[]]
    for x, y in zip(_values(trace.x), _values(trace.y), strict=False):
        if math.isfinite(y) and math.isfinite(x):
            segments[-1].append((panel.px(x), panel.py(y), x, y))
        elif "markers" not in trace.mode:
            segments.append([])
    points = [point for segment in segments for point in segment]
    lines = "".join(
        _stroke(f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y, *_ in segment)}"', trace)
        for segment in segments
        if len(segment) > 1
    )
    every = max(1, len(points) // 24)
    chosen = [point for index, point in enumerate(points) if (len(points) - 1 - index) % every == 0]
    hints = "".join(
        _marker(x, y, symbol, color, f"{trace.name}: {_number(b)} at {_number(a)}") for x, y, a, b in chosen
    )
    return lines + hints


def _stroke(shape: str, trace: Any) -> str:
    dash = _DASH.get(trace.line.dash or "solid", "")
    style = f'fill="none" stroke="{trace.line.color}" stroke-width="2"'
    return f"{shape} {style}" + (f' stroke-dasharray="{dash}"' if dash else "") + "/>"


def _marker(x: float, y: float, symbol: str, color: str, hint: str = "") -> str:
    shapes = {
        "square": "M-3,-3h6v6h-6z",
        "diamond": "M0,-4L4,0L0,4L-4,0z",
        "triangle-up": "M0,-4L4,3L-4,3z",
        "triangle-down": "M0,4L4,-3L-4,-3z",
        "x": "M-3,-3L3,3M-3,3L3,-3",
        "cross": "M0,-4V4M-4,0H4",
    }
    circle = "M-3,0a3,3 0 1 0 6,0a3,3 0 1 0 -6,0"
    fill = "none" if symbol.endswith("open") else color
    title = f"<title>{escape(hint)}</title>" if hint else ""
    place = f'transform="translate({x:.1f} {y:.1f})" d="{shapes.get(symbol, circle)}"'
    return f'<path {place} fill="{fill}" stroke="{color}">{title}</path>'


def _bars(panel: _Panel, traces: Sequence[Any], barmode: str, gap: float) -> Iterable[str]:
    if not traces:
        return
    slot = panel.px(1) - panel.px(0)
    width = slot * (1 - gap) / (1 if barmode == "stack" else len(traces))
    base: dict[int, float] = {}
    for number, trace in enumerate(traces):
        for x, y in zip(_values(trace.x), _values(trace.y), strict=False):
            if not math.isfinite(y):
                continue
            index = panel.categories.index(str(x))
            low = base.get(index, 0.0) if barmode == "stack" else 0.0
            base[index] = low + y
            left = panel.px(index) - slot * (1 - gap) / 2 + (0 if barmode == "stack" else number * width)
            bottom, top = sorted((panel.py(low), panel.py(low + y)), reverse=True)
            title = f"<title>{escape(f'{trace.name}, {x}: {_number(y)}')}</title>"
            yield _rect(left, top, width, bottom - top, trace, title)
            if trace.text is not None:
                yield _text(left + width / 2, top - 3, _number(round(y, 3)), size=10, anchor="middle")


def _rect(x: float, y: float, width: float, height: float, trace: Any, title: str = "") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{max(height, 0):.1f}"'
    plain = f'<rect {place} fill="{trace.marker.color}" stroke="currentColor" stroke-width="0.5">{title}</rect>'
    shape = trace.marker.pattern.shape
    return plain + (f'<rect {place} fill="url(#{_pattern_id(shape)})" pointer-events="none"/>' if shape else "")


def _legend_rows(panel: _Panel) -> list[list[tuple[float, Any]]]:
    """Rows of (x offset, trace): as many names in a row as fit the panel. A lone unnamed series needs no legend."""
    rows: list[list[tuple[float, Any]]] = [[]]
    x = 0.0
    for trace in panel.traces:
        need = 30 + 0.56 * FONT * len(trace.name or "")
        if rows[-1] and x + need > panel.box[2] - 76:
            rows.append([])
            x = 0.0
        rows[-1].append((x, trace))
        x += need + 8
    return rows


def _legend(panel: _Panel) -> Iterable[str]:
    top = panel.box[1] + (32 if panel.title else 14)
    for row, items in enumerate(_legend_rows(panel)):
        y = top + 17 * row
        for offset, trace in items:
            x = panel.box[0] + 62 + offset
            if trace.type == "bar":
                yield _rect(x, y - 9, 16, 10, trace)
            else:
                yield _stroke(f'<path d="M{x},{y - 4}h20"', trace)
                yield _marker(x + 10, y - 4, trace.marker.symbol or "circle", trace.line.color)
            yield _text(x + 25, y, trace.name or "", size=11)


# ------------------------------------------------------------------------------------------------ small parts


def _pattern_id(shape: str) -> str:
    return f"p{ord(shape)}"


def _pattern_defs(traces: Iterable[Any]) -> str:
    shapes = sorted(
        {trace.marker.pattern.shape for trace in traces if trace.type == "bar" and trace.marker.pattern.shape}
    )
    size = 'width="7" height="7" patternUnits="userSpaceOnUse"'
    style = 'stroke="#ffffff" stroke-opacity="0.85" stroke-width="1.2"'
    defs = (f'<pattern id="{_pattern_id(s)}" {size}><path d="{_STROKES[s]}" {style}/></pattern>' for s in shapes)
    return f"<defs>{''.join(defs)}</defs>" if shapes else ""


def _text(x: float, y: float, text: str, *, size: float = FONT, anchor: str = "start", weight: str = "normal") -> str:
    if not text:
        return ""
    style = f'font-size="{size}" text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'


def _plain(text: str | None) -> str:
    return (text or "").replace("<b>", "").replace("</b>", "")


def _number(value: float) -> str:
    return f"{value:.4g}"


def _values(values: Any) -> list[Any]:
    return [] if values is None else list(values)


def _finite(values: Iterable[Any]) -> list[float]:
    return [float(value) for value in values if math.isfinite(float(value))]
