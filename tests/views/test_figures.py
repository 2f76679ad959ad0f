from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from workbench.types import WorkbenchError
from workbench.views import figures
from workbench.views.svg import ticks, to_svg


def every_figure(metrics: pd.DataFrame, turns: pd.DataFrame, measured: tuple[dict, dict]) -> list[go.Figure]:
    table, failures = figures.measure_table(*measured), figures.failure_change_table(*measured)
    return [
        figures.learning_curve(metrics),
        figures.update_health(metrics),
        figures.dashboard(metrics),
        figures.failure_shares(turns),
        figures.stage_times(metrics),
        figures.before_after(table, "reward", "Reward", "mean reward (0 to 1)"),
        figures.before_after(failures, "share", "Failures", "share of drafts (0 to 1)"),
    ]


def test_series_differ_without_colour(metrics: pd.DataFrame, turns: pd.DataFrame, measured: tuple[dict, dict]) -> None:
    """Within one panel no two lines share dash and marker, and no two bars share a pattern."""
    for figure in every_figure(metrics, turns, measured):
        panels: dict[str, list[tuple]] = {}
        for trace in figure.data:
            look = (trace.line.dash, trace.marker.symbol) if trace.type == "scatter" else (trace.marker.pattern.shape,)
            panels.setdefault(trace.yaxis or "y", []).append(look)
        for looks in panels.values():
            assert len(set(looks)) == len(looks)


def test_axes_are_named_and_paper_is_transparent(
    metrics: pd.DataFrame, turns: pd.DataFrame, measured: tuple[dict, dict]
) -> None:
    for figure in every_figure(metrics, turns, measured):
        assert figure.layout.paper_bgcolor == figure.layout.plot_bgcolor == "rgba(0,0,0,0)"
        axes = [axis for axis in figure.layout if str(axis).startswith("yaxis")]
        assert all(figure.layout[axis].title.text for axis in axes)
        for trace in figure.data:
            assert trace.name


def test_learning_curve_is_a_trailing_mean(metrics: pd.DataFrame) -> None:
    figure = figures.learning_curve(metrics)
    assert figure.data[0].y[0] == pytest.approx(metrics["reward_mean"][0])
    assert figure.data[0].y[9] == pytest.approx(metrics["reward_mean"][5:10].mean())
    debug = metrics["valid_action_rate_debug"][5:10]
    assert figure.data[3].y[9] == pytest.approx(debug.dropna().mean())


def test_long_runs_are_thinned_and_end_with_the_newest_step() -> None:
    table = pd.DataFrame({"step": np.arange(1, 5001), "reward_mean": 0.5})
    figure = figures.dashboard(table)
    assert all(len(trace.x) <= figures.MAX_POINTS for trace in figure.data)
    assert figure.data[0].x[-1] == 5000
    assert figure.data[0].x[0] == 1


def test_dashboard_has_the_same_traces_for_any_table(metrics: pd.DataFrame) -> None:
    empty = figures.dashboard(pd.DataFrame({"step": []}))
    full = figures.dashboard(metrics)
    assert [trace.name for trace in empty.data] == [trace.name for trace in full.data]
    xs, ys = figures.dashboard_data(metrics)
    assert len(xs) == len(ys) == len(full.data)
    for trace, x, y in zip(full.data, xs, ys, strict=True):
        np.testing.assert_array_equal(trace.x, x)
        np.testing.assert_array_equal(trace.y, y)


def test_failure_shares_sum_to_one_without_unscorable(turns: pd.DataFrame) -> None:
    table = figures.failure_table(turns, bins=20, kinds=5)
    np.testing.assert_allclose(table.sum(axis=1), 1)
    assert table.columns[0] == "valid"
    assert table.columns[-1] == "other"
    assert len(table.columns) <= 6
    second = turns[(turns["step"] == 2) & (turns["verdict"] != "infrastructure")]
    assert table.loc[2, "valid"] == pytest.approx(second["failure"].isna().mean())
    assert len(figures.failure_table(turns, bins=4)) <= 4
    assert figures.failure_table(turns.iloc[:0]).empty


def test_stage_table_accounts_for_the_whole_step(metrics: pd.DataFrame) -> None:
    table = figures.stage_table(metrics, bins=50)
    assert list(table.columns) == ["generate", "execute", "update", "other"]
    np.testing.assert_allclose(table.sum(axis=1), metrics["seconds"], atol=1e-9)


def test_before_and_after_tables(measured: tuple[dict, dict]) -> None:
    table = figures.measure_table(*measured)
    assert list(table.index) == ["iris", "wine", "mean over tasks"]
    assert table.loc["mean over tasks", "reward_after"] == 0.6
    assert np.isnan(table.loc["wine", "position_after"])
    failures = figures.failure_change_table(*measured)
    assert list(failures.index) == ["syntax", "text_columns", "timeout"]
    assert failures.loc["syntax", "change"] == pytest.approx(4 / 64 - 30 / 64)
    assert failures.loc["timeout", "share_before"] == 0


def test_svg_is_well_formed_named_and_small(
    metrics: pd.DataFrame, turns: pd.DataFrame, measured: tuple[dict, dict]
) -> None:
    for figure in every_figure(metrics, turns, measured):
        svg = to_svg(figure)
        root = ElementTree.fromstring(svg)
        assert root.get("role") == "img"
        assert root.get("aria-label")
        assert len(svg) < 60_000
        for trace in figure.data:
            assert trace.name in svg


def test_svg_places_points_where_they_belong() -> None:
    """Three points of a line, and the height of a bar, in pixels of the drawn axes."""
    figure = figures.learning_curve(pd.DataFrame({"step": [1, 2, 3], "reward_mean": [0.0, 0.5, 1.0]}))
    points = re.search(r'<polyline points="([^"]+)"', to_svg(figure))
    assert points
    (x1, y1), (x2, y2), (x3, y3) = [tuple(map(float, point.split(","))) for point in points[1].split()]
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.2)
    assert y1 - y3 == pytest.approx(2 * (y1 - y2), abs=0.2)  # trailing means: 0, 1/4, 1/2
    table = pd.DataFrame({"v_before": [0.25], "v_after": [0.5]}, index=["iris"])
    heights = re.findall(r'height="([\d.]+)" fill="#', to_svg(figures.before_after(table, "v", "V", "share")))
    low, high = (float(height) for height in heights[-2:])
    assert high == pytest.approx(2 * low, abs=0.2)


def test_svg_of_nothing_and_of_gaps() -> None:
    for table in (pd.DataFrame({"step": []}), pd.DataFrame({"step": [1], "reward_mean": [np.nan]})):
        ElementTree.fromstring(to_svg(figures.learning_curve(table)))
        ElementTree.fromstring(to_svg(figures.dashboard(table)))


def test_svg_escapes_names() -> None:
    table = pd.DataFrame({"v_before": [1.0], "v_after": [1.0]}, index=["</svg><script>alert(1)</script>"])
    svg = to_svg(figures.before_after(table, "v", "<img onerror=1>", "share"))
    assert "<script" not in svg
    assert "<img" not in svg


def test_svg_refuses_what_it_cannot_draw() -> None:
    with pytest.raises(WorkbenchError, match="'pie' trace has no static twin"):
        to_svg(go.Figure(go.Pie(values=[1])))


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (1.0, 50.0), (-0.03, 0.04), (0.0, 1e-9), (5.0, 5000.0)])
def test_ticks_are_round_and_inside(low: float, high: float) -> None:
    found = ticks(low, high)
    assert 2 <= len(found) <= 12
    assert all(low - 1e-12 <= value <= high + 1e-12 for value in found)
