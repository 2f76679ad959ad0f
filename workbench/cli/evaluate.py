"""`workbench evaluate RUN|POLICY`: whole attempts on tasks, graded once each as mle-bench does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from workbench.cli.common import find_run, is_run
from workbench.cli.train import display, say
from workbench.config import Config, change, make_config
from workbench.control import Control
from workbench.types import WorkbenchError


def evaluate(subject: str, tasks: str | None, attempts: int, budget: int, seed: int) -> dict[str, Any]:
    """Measure a run's latest policy, or a policy as `--set policy=…` names it; the fields of `workbench evaluate`.

    A run is read, never written. Raises WorkbenchError for an unknown task or policy.
    """
    say("loading the policy")
    from workbench.agent.environment import Environment
    from workbench.agent.generate import HFGenerator
    from workbench.agent.policy import load_policy
    from workbench.agent.rollout import tasks_by_id
    from workbench.learning.evaluate import run_attempts
    from workbench.learning.trainer import start_executor
    from workbench.sandbox.executor import Limits
    from workbench.tasks.catalog import load_tasks

    config, weights = _subject(subject)
    chosen = load_tasks(tasks or config.eval_tasks, mlebench_repo=config.mlebench_repo)
    control = Control(config)
    policy = load_policy(config)
    if weights is not None:
        policy.load(weights)
    limits = Limits(cpu_s=config.cpu_s, wall_s=config.wall_s, memory_mb=config.memory_mb)
    with (
        start_executor(config, chosen) as executor,
        Environment(tasks_by_id(chosen), executor, limits, seed=seed, store=None) as environment,
        display() as tell,
    ):

        def progress(done: int, total: int) -> None:
            control.report(phase="agent step", done=done, total=total)
            tell({**control.progress(), "steps": None})

        result = run_attempts(
            policy,
            HFGenerator(policy),
            environment,
            config,
            attempts=attempts,
            budget=budget,
            seed=seed,
            on_progress=progress,
        )
    return {"subject": subject, "policy": config.policy, **result}


def _subject(subject: str) -> tuple[Config, Path | None]:
    """Settings and folder of trained weights (None: a policy as it is). Raises WorkbenchError for a run without any."""
    path = find_run(subject)
    if not is_run(path):
        return make_config(policy=subject), None
    from workbench.learning.opening import config_at
    from workbench.run import Run

    run = Run(path)
    latest = run.latest_checkpoint()
    if latest is None:
        raise WorkbenchError(
            f"'{path}' has no checkpoint yet, so there is nothing trained to measure: let it make a step with "
            f"`workbench resume {path}`, or measure its start with `workbench evaluate {run.config.policy}`."
        )
    dtype = run.environment.get("dtype", run.config.dtype)  # as it was trained, not as a new probe finds
    return change(config_at(run), temperature=1.0, dtype=dtype), latest[1] / "policy"


MEASURES = "valid_rate any_medal gold silver bronze above_median human_rank steps_to_first_valid".split()


def show(result: dict[str, Any]) -> None:
    """The result as a table on stdout: all tasks with their 95 % intervals, then each task."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("", "all", "95 %", *(task["id"] for task in result["tasks"])):
        table.add_column(name, justify="left" if not name else "right")
    for name in MEASURES:
        interval = result[f"{name}_ci"]
        bounds = f"{interval[0]:.2f} – {interval[1]:.2f}" if interval else "–"
        table.add_row(name, f"{result[name]:.2f}", bounds, *(f"{task[name]:.2f}" for task in result["tasks"]))
    console = Console(highlight=False)
    console.print(table)
    counts = f"{result['attempts']} attempts per task, {result['budget']} agent steps each"
    if result["unscorable"]:
        console.print(f"{result['unscorable']} executions were lost by the sandbox and are left out")
    console.print(f"{counts}; never valid counts as {result['budget'] + 1}: {result['censored_share']:.0%} of them")
