"""Many reports in one, and the mean over seeds, with the names and by the rules of mle-bench."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from workbench.types import WorkbenchError

Report = Mapping[str, Any]

SHARES = {
    "submission_exists_percentage": ("submission_exists",),
    "valid_submissions_percentage": ("valid_submission",),
    "above_median_percentage": ("above_median",),
    "gold_medal_percentage": ("gold_medal",),
    "silver_medal_percentage": ("silver_medal",),
    "bronze_medal_percentage": ("bronze_medal",),
    "any_medal_percentage": ("gold_medal", "silver_medal", "bronze_medal"),
}
"""Name -> fields of a report of which one must be true."""


def summary_report(reports: Sequence[Report]) -> dict[str, Any]:
    """The fields that mle-bench writes for a file of submissions."""
    counts = {name: sum(bool(report[f"{name}_medal"]) for report in reports) for name in ("gold", "silver", "bronze")}
    return {
        "total_runs": len(reports),
        "total_runs_with_submissions": sum(bool(report["submission_exists"]) for report in reports),
        "total_valid_submissions": sum(bool(report["valid_submission"]) for report in reports),
        "total_medals": sum(counts.values()),
        **{f"total_{name}_medals": count for name, count in counts.items()},
        "total_above_median": sum(bool(report["above_median"]) for report in reports),
        "competition_reports": list(reports),
    }


def seeds_of(reports: Sequence[Report], ids: Sequence[str], *, pad_missing: bool) -> list[list[Report | None]]:
    """One list per seed with one report per id: the n-th report of each id, in the order given, makes the n-th seed.

    Only complete seeds; with `pad_missing` as many as the most frequent id has, None where a report is missing.
    Raises WorkbenchError when that leaves none.
    """
    by_id = {name: [report for report in reports if report["competition_id"] == name] for name in ids}
    count = (max if pad_missing else min)(map(len, by_id.values()), default=0)
    if not count:
        absent = ", ".join(name for name, found in by_id.items() if not found) or "any competition"
        remedy = "grade them first" if pad_missing else "grade them, or count them as failed with --pad-missing"
        raise WorkbenchError(f"There are no reports of {absent}, so no seed is complete: {remedy}.")
    return [[found[seed] if seed < len(found) else None for found in by_id.values()] for seed in range(count)]


def average_seeds(reports: Sequence[Report], ids: Sequence[str], *, pad_missing: bool = False) -> dict[str, Any]:
    """Mean, standard error (ddof 1; 0 for one seed) and 1.96 of it on both sides, of each percentage over seeds.

    A missing report counts as a run without a submission. Raises WorkbenchError as `seeds_of` does.
    """
    seeds = seeds_of(reports, ids, pad_missing=pad_missing)
    metrics = {"total_competitions": _mean([float(len(ids))] * len(seeds))}
    for name, fields in SHARES.items():
        metrics[name] = _mean(
            [100 * fmean(report is not None and any(report[f] for f in fields) for report in seed) for seed in seeds]
        )
    return {"num_seeds_averaged": len(seeds), "num_competitions_per_seed": len(ids), "metrics": metrics}


def _mean(values: Sequence[float]) -> dict[str, float]:
    mean = fmean(values)
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return {"mean": mean, "ci_lower": mean - 1.96 * error, "ci_upper": mean + 1.96 * error, "standard_error": error}
