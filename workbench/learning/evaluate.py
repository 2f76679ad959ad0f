"""How good a policy is at single drafts: validity, reward, position, failure kinds, and how alike the scripts are.

Whole attempts are made in `learning/attempts.py` and measured in `learning/measures.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from workbench.agent.environment import Environment
from workbench.agent.generate import Generator
from workbench.agent.policy import Policy
from workbench.agent.rollout import refuse_lost, rollout
from workbench.config import Config, change
from workbench.learning.rewards import score_groups
from workbench.learning.templates import column_names, shares, template_measures
from workbench.tasks.task import Task, position
from workbench.types import Kind, State, Turn, WorkbenchError

Progress = Callable[[int, int], None]

DRAFTS_PER_PROMPT = 32
"""Drafts sampled in one generation call and task: bounds memory. Seeds count from the start of a call, so that another
value draws other drafts."""


def measure_drafts(
    policy: Policy,
    generator: Generator,
    environment: Environment,
    config: Config,
    *,
    drafts: int,
    seed: int,
    on_progress: Progress | None = None,
    on_batch: Progress | None = None,
) -> dict[str, Any]:
    """Sample `drafts` single drafts per task of `environment` at T = 1, run and grade them on the `reward` rows.

    Returns {"valid_action_rate", "reward", "position", "failures", "drafts", "templates", "template_share",
    "tasks": {id: the same}}; rates and means are means over tasks. `position` is the mean among valid submissions only
    (None without one), `template_share` that of the commonest template (`learning/templates.py`) among the drafts of a
    task, or of all. Unscorable drafts are left out and counted as `unscorable`. `on_progress(done, total)` counts
    drafts that were sampled, `on_batch` those of whole calls, run and graded. Raises WorkbenchError when all drafts of
    a task, or of a call, are unscorable.
    """
    settings = change(config, temperature=1.0)
    states = [State(task_id, Kind.DRAFT) for task_id in sorted(environment.tasks)]
    turns: dict[str, list[Turn]] = {state.task: [] for state in states}
    done, total = 0, drafts * len(states)
    for start in range(0, drafts, DRAFTS_PER_PROMPT):
        size = min(DRAFTS_PER_PROMPT, drafts - start)
        result = rollout(
            policy,
            generator,
            environment,
            states,
            settings,
            seed_path=(seed, "drafts", start),
            group_size=size,
            on_action=_shifted(on_progress, done, total),
        )
        refuse_lost(environment, result.groups)
        for group in score_groups(result.groups, environment.tasks):
            turns[group.state.task].extend(group.turns)
        done += size * len(states)
        if on_batch:
            on_batch(done, total)
    tasks = {task_id: _draft_measures(rows, environment.tasks[task_id]) for task_id, rows in turns.items()}
    templates: Counter[str] = Counter()
    for task_id, rows in turns.items():
        templates.update(_templates(rows, environment.tasks[task_id]))
    positions = [values["position"] for values in tasks.values() if values["position"] is not None]
    failures: Counter[str] = Counter()
    for values in tasks.values():
        failures.update(values["failures"])
    return {
        "valid_action_rate": fmean(v["valid_action_rate"] for v in tasks.values()),
        "reward": fmean(v["reward"] for v in tasks.values()),
        "position": fmean(positions) if positions else None,
        "failures": dict(failures.most_common()),
        "drafts": sum(v["drafts"] for v in tasks.values()),
        "unscorable": sum(v["unscorable"] for v in tasks.values()),
        **shares(templates, sum(v["drafts"] for v in tasks.values())),
        "tasks": tasks,
    }


def _shifted(on_progress: Progress | None, before: int, total: int) -> Progress | None:
    """Progress of one of several rollouts as that of the whole."""
    return None if on_progress is None else lambda done, _: on_progress(before + done, total)


def _draft_measures(turns: Sequence[Turn], task: Task) -> dict[str, Any]:
    scored = [turn for turn in turns if turn.reward is not None]
    if not scored:
        raise WorkbenchError(
            f"Not one of the {len(turns)} drafts of task '{task.id}' could be run and scored: see what "
            f"`workbench doctor` and `workbench tasks check {task.id}` say, and go on when it is mended."
        )
    positions = [position(task, t.feedback.score, "reward") for t in scored if t.feedback.score is not None]
    failures = Counter(t.feedback.failure or "unknown" for t in scored if not t.feedback.valid)
    return {
        "drafts": len(scored),
        "unscorable": len(turns) - len(scored),
        "valid_action_rate": len(positions) / len(scored),
        "reward": fmean(t.reward.total for t in scored if t.reward),
        "position": fmean(positions) if positions else None,
        "failures": dict(failures.most_common()),
        "distinct": len({t.action.text for t in scored}),
        **shares(_templates(turns, task), len(scored)),
    }


def _templates(turns: Sequence[Turn], task: Task) -> Counter[str]:
    return template_measures((turn.feedback.code for turn in turns if turn.reward is not None), column_names(task))
