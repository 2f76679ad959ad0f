"""`workbench bench SUITE`: how fast a part is on this machine, against what a user would have without it.

A suite returns lists of samples by name. What is compared is measured in turns in one process, so that a busy machine
slows both sides alike; ratios are of medians.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from workbench.types import WorkbenchError

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Measured:
    """Samples of one quantity."""

    values: Sequence[float]
    unit: str

    def as_dict(self) -> dict[str, Any]:
        digits = 4 if self.unit == "s" else 2
        return {
            **{name: round(f(self.values), digits) for name, f in (("median", median), ("min", min), ("max", max))},
            "unit": self.unit,
            "n": len(self.values),
        }


def ratio(slow: Measured, fast: Measured) -> Measured:
    """How many times `fast` is faster, from the medians."""
    return Measured([median(slow.values) / median(fast.values)], "x")


def bench(suite: str, repeats: int, tell: Tell) -> dict[str, Any]:
    """{machine, results: {name: {median, min, max, unit, n}}} of one suite or of `all`.

    Raises WorkbenchError for a suite that does not exist and for repeats below 1.
    """
    suites = _suites()
    if suite not in (*suites, "all"):
        raise WorkbenchError(f"'{suite}' is no suite: expected one of {', '.join((*suites, 'all'))}.")
    if repeats < 1:
        raise WorkbenchError(f"repeats={repeats} is not accepted: expected at least 1.")
    found: dict[str, Measured] = {}
    machine = describe_machine()
    for name in suites if suite == "all" else (suite,):
        facts, results = suites[name](repeats, tell)
        machine |= facts
        found |= results
    return {"machine": machine, "results": {name: measured.as_dict() for name, measured in found.items()}}


def _suites() -> Mapping[str, Callable[[int, Tell], tuple[dict[str, Any], dict[str, Measured]]]]:
    from workbench.cli import bench_sandbox

    return {"sandbox": bench_sandbox.measure}


def describe_machine() -> dict[str, Any]:
    """CPU, cores, load before the measurement, kernel and Python."""
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return {
        "cpu": names[0] if names else platform.processor() or platform.machine(),
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def show(found: Mapping[str, Any]) -> None:
    """A table on stdout."""
    from rich.console import Console
    from rich.table import Table

    machine = found["machine"]
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    table = Table("name", "median", "min", "max", "unit", "n")
    for column in table.columns[1:4]:
        column.justify = "right"
    for name, row in found["results"].items():
        table.add_row(name, *(f"{row[key]:g}" for key in ("median", "min", "max")), row["unit"], str(row["n"]))
    Console().print(table)
