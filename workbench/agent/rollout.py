"""From states to groups: render the prompts, sample the actions, execute each as soon as its last token is there."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from workbench.agent.environment import Environment, Outcome
from workbench.agent.generate import Generator
from workbench.agent.policy import Policy
from workbench.agent.prompts import TEMPLATE_RESERVE, PromptTooLong, messages
from workbench.config import Config
from workbench.sandbox.executor import Limits
from workbench.tasks.task import Task
from workbench.types import Action, Feedback, Group, Kind, State, Turn, Verdict, WorkbenchError


@dataclass(frozen=True, slots=True)
class Rollout:
    """The groups of one step, and what was left out."""

    groups: tuple[Group, ...]
    kept: tuple[int, ...]
    """Index, among the states asked for, of each group's state."""
    outcomes: tuple[tuple[Outcome, ...], ...]
    """[group][member], with the submissions' bytes where a program was executed."""
    executions: int
    """Distinct programs run; stored results and answers without code do not count."""
    unfit: tuple[State, ...]
    """States made of the policy's own scripts whose prompt does not fit its budget even after trimming."""
    waited_s: float
    """Seconds from the last token to the last outcome: the part of the executions that generation did not hide."""


def derive_seed(*parts: object) -> int:
    """A 63-bit seed from a path such as (run seed, "train", step, group, member): equal paths, equal samples."""
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def prompt_ids(policy: Policy, state: State, task: Task, budget: int, limits: Limits | None = None) -> list[int]:
    """The token ids the policy sees in this state: at most `budget`, sections trimmed by priority.

    What the chat template adds counts too; for less than `TEMPLATE_RESERVE` tokens that many are left. Raises
    `PromptTooLong` when not even the smallest form fits.
    """

    def count(text: str) -> int:
        whole = len(policy.prompt_ids([{"role": "user", "content": text}]))
        return max(policy.count_tokens(text), whole - TEMPLATE_RESERVE)

    return policy.prompt_ids(messages(state, task, budget=budget, count=count, limits=limits))


def rollout(
    policy: Policy,
    generator: Generator,
    environment: Environment,
    states: Sequence[State],
    config: Config,
    *,
    seed_path: Sequence[object],
    group_size: int | None = None,
    on_action: Callable[[int, int], None] | None = None,
) -> Rollout:
    """Sample `group_size` actions (None: `config.group_size`) in each state and run them.

    `seed_path` names this rollout, for example (seed, "train", step); member i of group g samples from the seed
    derived from (*seed_path, g, i), whatever else is in the batch. `on_action(done, total)` reports progress.
    Rewards are left None: scoring is the learner's (learning/rewards.py).
    """
    size = config.group_size if group_size is None else group_size
    budget, limits = config.max_prompt_tokens, environment.limits
    prompts = [_prompt(policy, state, environment.tasks[state.task], budget, limits) for state in states]
    fitting = [index for index, prompt in enumerate(prompts) if prompt]
    waiting: dict[tuple[int, int], Callable[[], Outcome]] = {}
    total = len(fitting) * size

    def run_now(position: int, member: int, action: Action) -> None:
        waiting[position, member] = environment.submit(states[fitting[position]].task, action)
        if on_action:
            on_action(len(waiting), total)

    actions = generator.generate(
        [prompts[index] for index in fitting],
        size,
        temperature=config.temperature,
        max_new_tokens=config.max_completion_tokens,
        seeds=[[derive_seed(*seed_path, index, i) for i in range(size)] for index in fitting],
        on_finish=run_now,
    )
    generated = time.perf_counter()
    outcomes = [[waiting[position, i]() for i in range(size)] for position in range(len(fitting))]
    waited_s = time.perf_counter() - generated
    groups = [
        _group(states[index], prompts[index], acts, [o.feedback for o in outs], (*seed_path, index))
        for index, acts, outs in zip(fitting, actions, outcomes, strict=True)
    ]
    return Rollout(
        groups=tuple(groups),
        kept=tuple(fitting),
        outcomes=tuple(tuple(row) for row in outcomes),
        executions=sum(outcome.executed for row in outcomes for outcome in row),
        unfit=tuple(state for state, prompt in zip(states, prompts, strict=True) if not prompt),
        waited_s=waited_s,
    )


def refuse_lost(environment: Environment, groups: Sequence[Group]) -> None:
    """Raise WorkbenchError when scripts were run and all were lost by us: then nothing can be learnt or measured."""
    run = [turn.feedback for group in groups for turn in group.turns if turn.feedback.code is not None]
    if not run or any(feedback.verdict is not Verdict.INFRASTRUCTURE for feedback in run):
        return
    environment.executor.start()  # where the sandbox itself is gone, this says why
    reason = (run[-1].reason or "no reason is known").rstrip(".")
    raise WorkbenchError(
        f"Not one of {len(run)} scripts could be run in the sandbox ({reason}): see what `workbench doctor` says, "
        "mend that, and go on."
    )


def _prompt(policy: Policy, state: State, task: Task, budget: int, limits: Limits) -> list[int]:
    """The prompt of a state; empty when what the policy wrote makes it too long. Raises `PromptTooLong` for a draft,
    whose length is the user's to mend."""
    try:
        return prompt_ids(policy, state, task, budget, limits)
    except PromptTooLong:
        if state.kind is Kind.DRAFT:
            raise
        return []


def _group(
    state: State,
    prompt: Sequence[int],
    actions: Sequence[Action],
    feedbacks: Sequence[Feedback],
    path: Sequence[object],
) -> Group:
    group_id = "/".join(str(part) for part in path)
    turns = [
        Turn(state, action, feedback, None, group_id, f"{group_id}/{member}", f"{state.kind.value}#1")
        for member, (action, feedback) in enumerate(zip(actions, feedbacks, strict=True))
    ]
    return Group(group_id, state, tuple(prompt), tuple(turns))


def tasks_by_id(tasks: Sequence[Task]) -> Mapping[str, Task]:
    """Task id → task."""
    return {task.id: task for task in tasks}
