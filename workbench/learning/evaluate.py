"""How good a policy is: single drafts (validity, reward, position, failure kinds) and whole attempts (medals, rank).

An attempt is one task, a budget of agent steps, one final submission chosen by the agent's own validation score and
graded once on the `final` rows. No hidden score ever reaches the agent.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from workbench.agent.environment import Environment, Outcome
from workbench.agent.generate import Generator
from workbench.agent.policy import Policy
from workbench.agent.rollout import refuse_lost, rollout
from workbench.config import Config, change
from workbench.learning.buffer import child
from workbench.learning.rewards import score_groups
from workbench.tasks.leaderboard import human_rank
from workbench.tasks.mle import MleTask, position, report
from workbench.types import Kind, State, Turn, Verdict, WorkbenchError

Progress = Callable[[int, int], None]

DRAFTS_PER_PROMPT = 32
"""Drafts sampled in one generation call and task: bounds memory. Seeds count from the start of a call, so that another
value draws other drafts."""

MAX_DEBUGS = 3
"""Debug steps in a row before an attempt starts over from a new draft (as AIDE does)."""

INTERVAL_DRAWS = 2000


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

    Returns {"valid_action_rate", "reward", "position", "failures", "drafts", "tasks": {id: the same}}; the totals are
    means over tasks. `position` is the mean among valid submissions only (None without one). Unscorable drafts are
    left out and counted as `unscorable`. `on_progress(done, total)` counts drafts that were sampled, `on_batch` those
    of whole calls, run and graded. Raises WorkbenchError when all drafts of a task, or of a call, are unscorable.
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
        "tasks": tasks,
    }


def _shifted(on_progress: Progress | None, before: int, total: int) -> Progress | None:
    """Progress of one of several rollouts as that of the whole."""
    return None if on_progress is None else lambda done, _: on_progress(before + done, total)


def _draft_measures(turns: Sequence[Turn], task: MleTask) -> dict[str, Any]:
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
    }


@dataclass
class Attempt:
    """One attempt in progress; `next_state` says where the agent acts next."""

    task: MleTask
    seed: int
    state: State
    debugs: int = 0
    steps: int = 0
    lost: int = 0
    """Executions lost by us: they are no steps of the agent's, and leave it where it stood."""
    first_valid: int | None = None
    submission: bytes | None = None
    own_score: float | None = None
    best_turn: Turn | None = None
    failures: list[str] = field(default_factory=list)

    def advance(self, turn: Turn, outcome: Outcome) -> None:
        """Take in one agent step: keep the better submission, choose draft, debug or improve for the next."""
        if turn.feedback.verdict is Verdict.INFRASTRUCTURE:
            self.lost += 1
            return
        self.steps += 1
        if turn.feedback.valid:
            self.first_valid = self.first_valid or self.steps
            self.debugs = 0
            if self._better(turn.feedback.own_score):
                self.submission, self.own_score, self.best_turn = outcome.submission, turn.feedback.own_score, turn
        else:
            self.failures.append(turn.feedback.failure or "unknown")
        self.state = self._next(turn)

    def _better(self, own_score: float | None) -> bool:
        """The best own score wins; without any own score the last valid submission stands."""
        if self.best_turn is None or (own_score is None and self.own_score is None):
            return True
        if own_score is None or self.own_score is None:
            return own_score is not None
        return own_score > self.own_score if self.task.higher_is_better else own_score < self.own_score

    def _next(self, turn: Turn) -> State:
        draft = State(self.task.id, Kind.DRAFT)
        if turn.feedback.valid:
            return child(self.best_turn or turn) or draft
        debug = child(turn)
        if debug is None or self.debugs >= MAX_DEBUGS:
            self.debugs = 0
            return (child(self.best_turn) if self.best_turn else None) or draft
        self.debugs += 1
        return debug


def run_attempts(
    policy: Policy,
    generator: Generator,
    environment: Environment,
    config: Config,
    *,
    attempts: int,
    budget: int = 10,
    seed: int = 0,
    on_progress: Progress | None = None,
) -> dict[str, Any]:
    """`attempts` attempts at every task of `environment`, all in parallel, `budget` agent steps each.

    Returns the fields of `workbench evaluate`; intervals are 95 % bootstraps over attempts with tasks fixed. Executions
    lost by us are no steps, and are counted as `unscorable`; an attempt of nothing else is left out. Raises
    WorkbenchError when all executions of a round, or all attempts at a task, are lost.
    """
    active = [
        Attempt(task, number, State(task.id, Kind.DRAFT))
        for number in range(attempts)
        for _, task in sorted(environment.tasks.items())
    ]
    for step in range(budget):
        result = rollout(
            policy,
            generator,
            environment,
            [attempt.state for attempt in active],
            config,
            seed_path=(seed, "attempts", step),
            group_size=1,
            on_action=_shifted(on_progress, step * len(active), budget * len(active)),
        )
        refuse_lost(environment, result.groups)
        rows = dict(zip(result.kept, zip(result.groups, result.outcomes, strict=True), strict=True))
        for index, attempt in enumerate(active):
            if index in rows:
                group, outcomes = rows[index]
                attempt.advance(group.turns[0], outcomes[0])
            else:  # the state's prompt does not fit: start over, the step counts
                attempt.steps += 1
                attempt.state = State(attempt.task.id, Kind.DRAFT)
        if on_progress:
            on_progress((step + 1) * len(active), budget * len(active))
    return summarise(active, attempts, budget)


def summarise(attempts: Sequence[Attempt], seeds: int, budget: int) -> dict[str, Any]:
    """Grade each final submission once and average: per task and in all, with intervals over seeds."""
    tried = [attempt for attempt in attempts if attempt.steps]
    if missing := {attempt.task.id for attempt in attempts} - {attempt.task.id for attempt in tried}:
        raise WorkbenchError(
            f"Not one script of any attempt at task '{min(missing)}' could be run: see what `workbench doctor` says."
        )
    rows = [_graded(attempt, budget) for attempt in tried]
    names = (
        "valid_rate",
        "any_medal",
        "gold",
        "silver",
        "bronze",
        "above_median",
        "human_rank",
        "steps_to_first_valid",
    )
    totals: dict[str, Any] = {}
    for name in names:
        by_seed = [[float(row[name]) for row in rows if row["seed"] == number] for number in range(seeds)]
        per_seed = [fmean(values) for values in by_seed if values]
        totals[name] = fmean(per_seed)
        totals[f"{name}_ci"] = interval(per_seed)
    tasks = [
        {
            "id": task_id,
            "attempts": [row["report"] for row in rows if row["task"] == task_id],
            **{name: fmean(float(row[name]) for row in rows if row["task"] == task_id) for name in names},
        }
        for task_id in sorted({row["task"] for row in rows})
    ]
    failures = Counter(name for attempt in attempts for name in attempt.failures)
    censored = fmean(float(row["steps_to_first_valid"] > budget) for row in rows)
    return {
        "tasks": tasks,
        **totals,
        "censored_share": censored,
        "budget": budget,
        "attempts": seeds,
        "failures": dict(failures.most_common()),
        "unscorable": sum(attempt.lost for attempt in attempts),
    }


def _graded(attempt: Attempt, budget: int) -> dict[str, Any]:
    graded = report(attempt.task, attempt.submission, None)
    return {
        "task": attempt.task.id,
        "seed": attempt.seed,
        "report": graded,
        "valid_rate": graded["valid_submission"],
        "any_medal": graded["any_medal"],
        "gold": graded["gold_medal"],
        "silver": graded["silver_medal"],
        "bronze": graded["bronze_medal"],
        "above_median": graded["above_median"],
        "human_rank": _human_rank(attempt.task, graded["score"]),
        "steps_to_first_valid": attempt.first_valid or budget + 1,
    }


def _human_rank(task: MleTask, score: float | None) -> float:
    """Share of the board that is not strictly better; 0 without a score."""
    return 0.0 if score is None else human_rank(score, task.scores, task.higher_is_better)


def interval(values: Sequence[float], *, draws: int = INTERVAL_DRAWS, seed: int = 0) -> list[float] | None:
    """95 % bootstrap interval of the mean over `values` (one per seed); None below two values."""
    if len(values) < 2:
        return None
    generator = random.Random(seed)
    means = sorted(fmean(generator.choices(values, k=len(values))) for _ in range(draws))
    return [means[int(0.025 * draws)], means[int(0.975 * draws) - 1]]
