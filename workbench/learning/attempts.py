"""Whole attempts: one task, a budget of agent steps, one final submission that the agent's own score chooses.

No hidden score ever reaches the agent, nor decides what it does next; `learning/measures.py` grades afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from workbench.agent.environment import Environment, Outcome
from workbench.agent.generate import Generator, OnFinish
from workbench.agent.policy import Policy
from workbench.agent.rollout import refuse_lost, rollout
from workbench.config import Config
from workbench.learning.buffer import child
from workbench.tasks.task import Task
from workbench.types import Action, Kind, State, Turn, Verdict

Progress = Callable[[int, int], None]

MAX_DEBUGS = 3
"""Debug steps in a row before an attempt gives a script up (as AIDE does), for its best valid one or a new draft."""

LOST_ROUNDS = 3
"""Rounds beyond the budget, for the steps whose executions were lost by us."""


@dataclass(frozen=True, slots=True)
class Act:
    """One action of an attempt, as far as measures need it."""

    kind: Kind
    code: str | None
    valid: bool
    failure: str | None


@dataclass
class Attempt:
    """One attempt in progress; `state` says where the agent acts next."""

    task: Task
    seed: int
    state: State
    debugs: int = 0
    lost: int = 0
    """Executions lost by us: they are no steps of the agent's, and leave it where it stood."""
    first_valid: int | None = None
    submission: bytes | None = None
    own_score: float | None = None
    best_turn: Turn | None = None
    acts: list[Act] = field(default_factory=list)
    standing: list[bytes | None] = field(default_factory=list)
    """After each agent step, the submission that would be final if the attempt ended there."""

    @property
    def steps(self) -> int:
        """Agent steps taken."""
        return len(self.standing)

    def advance(self, turn: Turn, outcome: Outcome) -> None:
        """Take in one agent step: keep the better submission, choose draft, debug or improve for the next."""
        feedback = turn.feedback
        if feedback.verdict is Verdict.INFRASTRUCTURE:
            self.lost += 1
            return
        failure = None if feedback.valid else feedback.failure or "unknown"
        self.acts.append(Act(turn.state.kind, feedback.code, feedback.valid, failure))
        if feedback.valid:
            self.first_valid = self.first_valid or self.steps + 1
            self.debugs = 0
            if self._better(feedback.own_score):
                self.submission, self.own_score, self.best_turn = outcome.submission, feedback.own_score, turn
        self.standing.append(self.submission)
        self.state = self._next(turn)

    def start_over(self) -> None:
        """A step without an action, because the prompt of its state does not fit: it counts, the next is a draft."""
        self.debugs = 0
        self.standing.append(self.submission)
        self.state = State(self.task.id, Kind.DRAFT)

    def after(self, budget: int) -> bytes | None:
        """The submission that is final after `budget` agent steps, or after as many as there were."""
        return self.standing[min(budget, self.steps) - 1] if self.steps else None

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
) -> list[Attempt]:
    """`attempts` attempts at every task of `environment`, all in parallel, `budget` agent steps each.

    Equal arguments give equal attempts, and two policies draw from the same random numbers. A step whose execution is
    lost by us is taken again, in at most `LOST_ROUNDS` further rounds. Raises WorkbenchError when all executions of one
    of the first `budget` rounds are lost.
    """
    every = [
        Attempt(task, number, State(task.id, Kind.DRAFT))
        for number in range(attempts)
        for _, task in sorted(environment.tasks.items())
    ]
    for number in range(budget + LOST_ROUNDS):
        active = [attempt for attempt in every if attempt.steps < budget]
        if not active:
            break
        result = rollout(
            policy,
            generator,
            environment,
            [attempt.state for attempt in active],
            config,
            seed_path=(seed, "attempts", number),
            group_size=1,
            on_action=_further(on_progress, sum(attempt.steps for attempt in every), budget * len(every)),
        )
        if number < budget:  # later ones hold few, and one of them may be lost every time
            refuse_lost(environment, result.groups)
        rows = dict(zip(result.kept, zip(result.groups, result.outcomes, strict=True), strict=True))
        for index, attempt in enumerate(active):
            if index in rows:
                group, outcomes = rows[index]
                attempt.advance(group.turns[0], outcomes[0])
            else:
                attempt.start_over()
        if on_progress:
            on_progress(sum(attempt.steps for attempt in every), budget * len(every))
    return every


def _further(on_progress: Progress | None, before: int, total: int) -> Progress | None:
    """Progress of a round as that of all."""
    return None if on_progress is None else lambda done, _: on_progress(before + done, total)


@dataclass(frozen=True, slots=True)
class Greedy:
    """A generator that takes the likeliest token always."""

    generator: Generator

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        *,
        temperature: float,
        max_new_tokens: int,
        seeds: Sequence[Sequence[int]],
        on_finish: OnFinish | None = None,
        greedy: bool = True,
    ) -> list[list[Action]]:
        """As the generator's own, greedy whatever is asked for."""
        return self.generator.generate(
            prompts,
            n,
            temperature=temperature,
            max_new_tokens=max_new_tokens,
            seeds=seeds,
            on_finish=on_finish,
            greedy=True,
        )
