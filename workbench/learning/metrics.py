"""What a step and a run are measured by, as plain numbers: rates, lengths, seconds per stage, and the one warning."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from workbench.agent.rollout import Rollout
from workbench.config import Config
from workbench.tasks.task import Task, position
from workbench.types import Group, Kind, StopReason

WARN_SHARE = 0.9
"""Share of cut completions or of flat groups from which a warning is shown."""
LOST_SHARE = 0.1
"""Share of actions that the sandbox lost above which a warning is shown."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The one-line result of a run."""

    run: str
    report: str
    steps: int
    seconds: float
    """Of its steps, without loading, the sandbox's start and the measurements."""
    valid_before: float | None
    valid_after: float | None
    reward_before: float | None
    reward_after: float | None
    seed: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def due(step: int, config: Config) -> bool:
    """Whether kept-out drafts are measured after this step: every `eval_every` steps, and after the last."""
    return config.eval_every > 0 and (step % config.eval_every == 0 or step == config.steps)


def dues_left(step: int, config: Config) -> int:
    """How many measurements come after this step."""
    every, left = config.eval_every, config.steps - step
    if not every or left <= 0:
        return 0
    return config.steps // every - step // every + (config.steps % every > 0)


def kept_out_metrics(measured: Mapping[str, Any], when: str = "") -> dict[str, float]:
    """What `measure_drafts` found, as metrics of a step; `when` = "_start" for the policy before the first step."""
    return {f"kept_out_valid{when}": measured["valid_action_rate"], f"kept_out_reward{when}": measured["reward"]}


def rollout_metrics(
    results: Sequence[Rollout], groups: Sequence[Group], tasks: Mapping[str, Task], version: int
) -> dict[str, float]:
    """Plain numbers about what the policy did in this step; a rate with no action behind it is left out."""
    turns = [turn for group in groups for turn in group.turns if turn.reward is not None]
    valid = [turn for turn in turns if turn.feedback.valid]
    lengths = [len(turn.action.token_ids) for turn in turns]
    staleness = [version - turn.action.policy_version for turn in turns]
    metrics: dict[str, float] = {
        "actions": float(sum(len(group.turns) for group in groups)),
        "executions": float(sum(result.executions for result in results)),
        "skipped_prompts": float(sum(len(result.unfit) for result in results)),
    }
    if turns:
        metrics |= {
            "valid_action_rate": len(valid) / len(turns),
            "completion_tokens_mean": fmean(lengths),
            "clipped_completions": fmean(turn.action.stop_reason is StopReason.LENGTH for turn in turns),
            "staleness_mean": fmean(staleness),
            "staleness_max": float(max(staleness)),
            "cpu_s_mean": fmean(turn.feedback.cpu_s for turn in turns),
        }
    names = {name for turn in turns if turn.reward for name in turn.reward.components}
    for name in sorted(names):  # of those turns that a component applies to; none of a step, no value
        values = [t.reward.components[name] for t in turns if t.reward and name in t.reward.components]
        metrics[f"reward_component_{name}"] = fmean(values)
    for kind in Kind:
        of_kind = [turn for turn in turns if turn.state.kind is kind]
        if of_kind:
            metrics[f"valid_action_rate_{kind.value}"] = fmean(turn.feedback.valid for turn in of_kind)
    if valid:
        metrics["position_mean"] = fmean(
            position(tasks[t.state.task], t.feedback.score, "reward") for t in valid if t.feedback.score is not None
        )
    return metrics


def warning(config: Config, metrics: Mapping[str, float]) -> str | None:
    """One sentence when a run cannot learn as it is: the sandbox fails, completions are cut, or groups are flat."""
    lost = metrics.get("unscorable", 0.0) / max(metrics.get("actions", config.groups * config.group_size), 1)
    if lost > LOST_SHARE:
        return f"{lost:.0%} of the actions could not be run: see what `workbench doctor` says of the sandbox."
    clipped, flat = metrics.get("clipped_completions", 0.0), metrics.get("flat_share", 0.0)
    if clipped >= WARN_SHARE:
        limit = config.max_completion_tokens
        return f"{clipped:.0%} of the completions were cut at max_completion_tokens={limit}: raise it."
    if flat >= WARN_SHARE:
        return f"{flat:.0%} of the groups have equal rewards and teach nothing: raise group_size or change the tasks."
    return None


class StageTimer:
    """Seconds per named stage of one step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.start = time.perf_counter()

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start

    def split(self, stage: str, part: str, seconds: float) -> None:
        """Count `seconds` of what `stage` took as `part` instead."""
        self.seconds[stage] -= seconds
        self.seconds[part] = self.seconds.get(part, 0.0) + seconds

    def metrics(self) -> dict[str, float]:
        """seconds_<stage> for each stage, and `seconds` for the step so far without the stage `measure`, which does not
        train."""
        total = time.perf_counter() - self.start - self.seconds.get("measure", 0.0)
        return {**{f"seconds_{name}": value for name, value in self.seconds.items()}, "seconds": total}
