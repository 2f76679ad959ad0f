"""`workbench bench sampler`: does P find the states from which a policy learns (learning/visits.py)?"""

from __future__ import annotations

from typing import Any

from workbench.cli.bench import Measured, Tell
from workbench.cli.evaluate import find_subject
from workbench.config import change
from workbench.types import WorkbenchError

STATES = 64
LEAST = 8

LEGEND = {
    "flat_NAME": "share of flat groups that the law of this strategy draws, by P of one visit, at the next (at full ρ)",
    "fewer_flat_NAME": "is uniform's share over that",
    "spearman_P": "rank correlation of P with the norm of the group's gradient at the next visit",
}


def check_states(states: int) -> None:
    """Raises WorkbenchError for fewer states than say anything."""
    if states < LEAST:
        raise WorkbenchError(f"states={states} is not accepted: expected at least {LEAST}.")


def measure(
    policy: str, states: int, group_size: int, repeats: int, tell: Tell
) -> tuple[dict[str, Any], dict[str, Measured]]:
    """Facts and samples, one per round of `states` states and of drafts of its own, by a policy or by a run's latest.

    A run is measured on its tasks, a policy on all training tasks. Raises WorkbenchError for a size, a policy, or
    states of which too few differ.
    """
    from workbench.agent.environment import Environment
    from workbench.agent.policy import load_policy
    from workbench.agent.rollout import tasks_by_id
    from workbench.learning.trainer import start_executor
    from workbench.learning.visits import Visitor, judge
    from workbench.sandbox.executor import Limits
    from workbench.tasks.catalog import load_tasks

    check_states(states)
    subject = find_subject(policy)
    config = change(subject.config, group_size=group_size, kl_coef=0.0, iterations=1)
    if subject.run is None:
        config = change(config, tasks="train")
    tasks = load_tasks(config.tasks, mlebench_repo=config.mlebench_repo)
    tell(f"loading {policy}")
    loaded = load_policy(config)
    if subject.weights is not None:
        loaded.load(subject.weights)
    limits = Limits(cpu_s=config.cpu_s, wall_s=config.wall_s, memory_mb=config.memory_mb)
    found: dict[str, list[float]] = {}
    counts: list[int] = []
    with (
        start_executor(config, tasks) as executor,
        Environment(tasks_by_id(tasks), executor, limits, seed=config.seed, store=None) as environment,
    ):
        for number in range(repeats):
            visitor = Visitor(loaded, environment, config, number, f"round {number + 1} of {repeats}", tell)
            pairs = visitor.visit_twice(states)
            counts.append(len(pairs))
            for name, value in judge(pairs, config).items():
                found.setdefault(name, []).append(value)
    facts = {"policy": policy, "states": round(sum(counts) / repeats), "group_size": group_size}
    units = {name: "x" if name.startswith("fewer") else "" for name in found}
    return {"sampler": facts, "legend": LEGEND}, {name: Measured(found[name], units[name]) for name in found}
