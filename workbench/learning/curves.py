"""What runs are compared by: the area under a curve over executions, and pairs of seeds. No torch here.

A curve is a list of (executions, value) with rising executions: what a policy was worth on kept-out tasks after so many
distinct programs of training. Runs are compared at equal executions: all curves are cut at the smallest common number.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from workbench.learning.statistics import interval
from workbench.types import WorkbenchError

if TYPE_CHECKING:
    import pandas as pd

Curve = Sequence[tuple[float, float]]


def kept_out_curve(metrics: pd.DataFrame, measure: str) -> list[tuple[float, float]]:
    """The curve of `measure` (`valid` or `reward`) that a run measured along training, from 0 executions on.

    `metrics`: `Run.metrics()`. Empty when the run measured nothing along training (`eval_every` = 0).
    """
    name = f"kept_out_{measure}"
    if name not in metrics or f"{name}_start" not in metrics:
        return []
    counts = metrics["executions"].cumsum()
    points = [(0.0, float(metrics[f"{name}_start"].iloc[0]))]
    for executions, value in zip(counts, metrics[name], strict=True):
        if not math.isnan(value):
            if executions == points[-1][0]:  # steps of stored results and answers without code: no execution between
                points.pop()
            points.append((float(executions), float(value)))
    return points


def value_at(curve: Curve, at: float) -> float:
    """The curve's value at `at` executions, straight between its points. Raises WorkbenchError outside its range."""
    _check(curve, at)
    for (x0, y0), (x1, y1) in itertools.pairwise(curve):
        if x0 <= at <= x1:
            return y0 + (y1 - y0) * (at - x0) / (x1 - x0)
    return curve[-1][1]


def area(curve: Curve, until: float) -> float:
    """Mean height of the curve from its first point to `until` executions: trapezoids over the range of executions.

    Raises WorkbenchError when the curve ends before `until`, or has no range.
    """
    _check(curve, until)
    start = curve[0][0]
    if until <= start:
        raise WorkbenchError(f"A curve that starts at {start:g} has no area up to {until:g} executions.")
    cut = [(x, y) for x, y in curve if x < until]
    cut.append((until, value_at(curve, until)))
    trapezoids = ((x1 - x0) * (y0 + y1) / 2 for (x0, y0), (x1, y1) in itertools.pairwise(cut))
    return math.fsum(trapezoids) / (until - start)


def common_end(curves: Sequence[Curve]) -> float:
    """The smallest number of executions at which one of at least one curves ends."""
    return min(curve[-1][0] for curve in curves)


def _check(curve: Curve, at: float) -> None:
    if not curve or not curve[0][0] <= at <= curve[-1][0]:
        bounds = f"from {curve[0][0]:g} to {curve[-1][0]:g}" if curve else "nowhere"
        raise WorkbenchError(f"A curve that is known {bounds} has no value at {at:g} executions.")


def difference_to_first(
    first: Mapping[Any, float], other: Mapping[Any, float]
) -> tuple[int, float | None, list[float] | None]:
    """(pairs, mean difference other - first, its 95 % bootstrap interval), over the seeds that both have."""
    differences = [other[seed] - first[seed] for seed in sorted(first.keys() & other.keys())]
    return len(differences), fmean(differences) if differences else None, interval(differences)
