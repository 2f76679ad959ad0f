"""`workbench evaluate RUN|POLICY…`: whole attempts on tasks, graded as mle-bench does, alone or against another."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.cli.common import find_run, is_run, say
from workbench.config import Config, change, make_config
from workbench.types import WorkbenchError

if TYPE_CHECKING:
    from workbench.agent.environment import Environment
    from workbench.agent.policy import Policy
    from workbench.learning.baselines import Baseline
    from workbench.learning.measures import Measured
    from workbench.tasks.task import Task

Tell = Callable[[str, int, int, float | None], None]
"""Shows progress: phase, done, total, seconds left of the whole command (None: not known yet)."""

START = "start"
"""Word for the policy of a run before its training."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How each policy is measured."""

    attempts: int
    budget: int
    seed: int
    greedy: bool = False


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured: settings, and the folder of trained weights (None: the policy as it is)."""

    name: str
    config: Config
    weights: Path | None
    run: Path | None

    @property
    def where(self) -> str:
        """What it is, however it was named."""
        return str(self.run.resolve()) if self.run else self.config.policy


def evaluate(
    subjects: Sequence[str],
    tasks: str | None,
    plan: Plan,
    *,
    against: str | None = None,
    baseline: bool = False,
    scripts: Path | None = None,
    keep: Path | None = None,
) -> dict[str, Any]:
    """The fields of `workbench evaluate`, for a run's latest policy or a policy as `--set policy=…` names it.

    Runs are read, never written. Actions are drawn at temperature 1 whatever a run trained with; tasks, limits of
    scripts and training tasks are those of the first subject's settings. Subject number i, from 0, and what it is
    compared with draw from the seed `plan.seed` + i: one start of several runs is measured once for each of them, so
    that its own luck is in the intervals. What each policy came to is kept in the folder `keep`, and read back instead
    of being measured again. Raises WorkbenchError for an unknown task or policy.
    """
    ours = [find_subject(text) for text in subjects]
    if twice := [each for place, each in enumerate(ours) if each.where in [other.where for other in ours[:place]]]:
        raise WorkbenchError(f"'{twice[0].name}' is named twice and would count as two seeds: leave one of them out.")
    theirs = _others(ours, against)
    config = ours[0].config
    chosen, training = _tasks(config, tasks, baseline)
    candidates = _candidates(ours, training, scripts) if baseline else {}
    _find_policies([*ours, *theirs])
    seen = _seen(ours, {task.id for task in chosen})
    if known := _seen(theirs, {task.id for task in chosen}):
        say(f"{against} was trained on {', '.join(known)}: what it is measured by there is no generalisation")
    if seen:
        say(f"trained on {', '.join(seen)}: what is measured there is no generalisation")
    from workbench.learning.measures import compare, compare_with_constant, summary

    sizes = [plan.attempts * len(chosen) * plan.budget] * (len(ours) * (2 if theirs else 1))
    if candidates:
        sizes.append(len(candidates) * len(training) + len(chosen))
    with _environment(config, [*chosen, *training], plan.seed) as (environment, tell):
        work = Work(tell, sum(sizes), enough=plan.attempts * len(chosen))

        fixed = _fixed(candidates, training, chosen, environment, work) if candidates else None
        environment.tasks = {task.id: task for task in chosen}

        def measured(subject: Subject, place: int) -> Measured:
            return _measured(subject, environment, work, replace(plan, seed=plan.seed + place), keep)

        mine = [measured(subject, place) for place, subject in enumerate(ours)]
        others = [measured(theirs[place % len(theirs)], place) for place in range(len(ours) if theirs else 0)]
    names = [subject.name for subject in ours]
    result: dict[str, Any] = {"subject": names[0] if len(names) == 1 else names, "policy": config.policy}
    result |= {**summary(mine), "seed": plan.seed, "greedy": plan.greedy, "seen": seen}
    if len(ours) > 1:
        result["runs"] = [
            {"subject": subject.name, **_totals(summary([each]))} for subject, each in zip(ours, mine, strict=True)
        ]
    if against is not None:
        result["against"] = {"subject": against, **_totals(summary(others)), "measures": compare(mine, others)}
    if fixed is not None:
        result["baseline"] = {**fixed.as_dict(), "measures": compare_with_constant(mine, fixed.values)}
    return result


def find_subject(text: str) -> Subject:
    """A run's latest policy, or a policy by name. Raises WorkbenchError for a run without a checkpoint."""
    path = find_run(text)
    if not is_run(path):
        return Subject(text, make_config(policy=text), None, None)
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
    config = change(config_at(run), temperature=1.0, dtype=dtype)
    return Subject(text, config, latest[1] / "policy", path)


def _others(ours: Sequence[Subject], against: str | None) -> list[Subject]:
    """What `ours` are compared with: one for all, or each run's own start; runs of one start share it."""
    if against is None:
        return []
    if against != START:
        return [find_subject(against)]
    for subject in ours:
        if subject.run is None:
            raise WorkbenchError(f"'{subject.name}' is no run and has no start: name a run, or another --against.")
    starts = [Subject(f"start of {each.name}", each.config, None, None) for each in ours]
    same = {tuple(getattr(each.config, name) for name in _DECIDES) for each in starts}
    return starts[:1] if len(same) == 1 else starts


_DECIDES = ("policy", "dtype", "adapter", "device", "max_prompt_tokens", "max_completion_tokens")
"""Settings that decide what an untrained policy writes."""


def _tasks(config: Config, tasks: str | None, baseline: bool) -> tuple[list[Task], list[Task]]:
    """(those to measure, those that choose the fixed script)."""
    from workbench.tasks.catalog import load_tasks
    from workbench.tasks.task import position

    chosen = load_tasks(config.eval_tasks if tasks is None else tasks, mlebench_repo=config.mlebench_repo)
    for task in chosen:  # what cannot be measured is told before hours are spent
        position(task, task.thresholds.gold, "final")
    ids = {task.id for task in chosen}
    trained = load_tasks(config.tasks, mlebench_repo=config.mlebench_repo) if baseline else []
    training = [task for task in trained if task.id not in ids]
    if baseline and not training:
        raise WorkbenchError(
            f"All of tasks='{config.tasks}' are measured, so none is left to choose the fixed script by: leave some "
            "out with --tasks, or leave out --baseline."
        )
    return chosen, training


def _find_policies(subjects: Sequence[Subject]) -> None:
    """Raises WorkbenchError for a policy that is not there, before hours are spent on another."""
    from workbench.agent.loading import reach_hub, resolve

    for name in dict.fromkeys(subject.config.policy for subject in subjects):
        reach_hub(resolve(name))


def _seen(ours: Sequence[Subject], ids: set[str]) -> list[str]:
    """The measured tasks that one of the runs was trained on."""
    from workbench.tasks.catalog import load_tasks

    trained: set[str] = set()
    for subject in ours:
        if subject.run is None:
            continue
        try:
            tasks = load_tasks(subject.config.tasks, mlebench_repo=subject.config.mlebench_repo)
        except WorkbenchError as error:  # its tasks are elsewhere, or gone
            say(f"whether {subject.name} was trained on what is measured cannot be told: {error}")
        else:
            trained |= {task.id for task in tasks}
    return sorted(ids & trained)


@contextmanager
def _environment(config: Config, tasks: Sequence[Task], seed: int) -> Iterator[tuple[Environment, Tell]]:
    """An environment with its executor, and a function that shows progress, for as long as they are needed."""
    from workbench.agent.environment import Environment
    from workbench.agent.rollout import tasks_by_id
    from workbench.cli.train import display
    from workbench.control import Control
    from workbench.learning.trainer import start_executor
    from workbench.sandbox.executor import Limits

    control = Control(config)
    limits = Limits(cpu_s=config.cpu_s, wall_s=config.wall_s, memory_mb=config.memory_mb)
    with (
        start_executor(config, tasks) as executor,
        Environment(tasks_by_id(tasks), executor, limits, seed=seed, store=None) as environment,
        display() as show,
    ):

        def tell(phase: str, done: int, total: int, eta_s: float | None) -> None:
            control.report(phase=phase, done=done, total=total, eta_s=eta_s)
            show({**control.progress(), "steps": None})

        yield environment, tell


@dataclass
class Work:
    """How far the whole command is, in executions: those of attempts, and those of fixed scripts."""

    tell: Tell
    total: int
    enough: int
    """So many executions of a phase tell its pace: those of one round of attempts."""
    finished: int = 0
    seconds: float = 0.0
    """What the phases that are over took, without the loading of policies."""
    clock: Callable[[], float] = field(default=time.monotonic)

    @contextmanager
    def phase(self, name: str, size: int) -> Iterator[Callable[[int, int], None]]:
        """A function that shows progress (done, total) of a phase of `size` executions."""
        started = self.clock()

        def progress(done: int, total: int) -> None:
            self.tell(name, done, total, self.eta_s(done, self.clock() - started))

        yield progress
        self.finished += size
        self.seconds += self.clock() - started

    def eta_s(self, done: int, elapsed: float) -> float | None:
        """Seconds left of all phases at the pace of the one in progress, or until that is known of those before."""
        count, seconds = (done, elapsed) if done >= self.enough else (self.finished, self.seconds)
        return seconds / count * max(0, self.total - self.finished - done) if count else None


def _measured(subject: Subject, environment: Environment, work: Work, plan: Plan, keep: Path | None) -> Measured:
    from torch import OutOfMemoryError

    from workbench.agent.policy import load_policy
    from workbench.learning import kept

    say(f"loading {subject.name}")
    try:
        policy = load_policy(subject.config)
        if subject.weights is not None:
            policy.load(subject.weights)
        if keep is None:
            return _measure(subject, policy, environment, work, plan)
        file = keep / f"{kept.name_of(policy, environment, subject.config, asdict(plan))}.json"
        found = kept.read(file)
        if found is not None:
            say(f"{subject.name} was measured before: {file}")
            work.total -= plan.attempts * plan.budget * len(environment.tasks)
            return found
        found = _measure(subject, policy, environment, work, plan)
    except OutOfMemoryError:
        raise WorkbenchError(
            f"The device ran out of memory while '{subject.name}' was measured: give it fewer attempts at once than "
            f"--attempts {plan.attempts}, end what else uses the device, or measure a smaller policy."
        ) from None
    try:
        kept.write(file, found)
    except OSError as error:
        say(f"{file} cannot be written ({error.strerror}): {subject.name} is not kept")
    return found


def _measure(subject: Subject, policy: Policy, environment: Environment, work: Work, plan: Plan) -> Measured:
    from workbench.agent.generate import HFGenerator
    from workbench.learning.attempts import Greedy, run_attempts
    from workbench.learning.measures import measure

    generator = HFGenerator(policy)
    size = plan.attempts * len(environment.tasks) * plan.budget
    with work.phase(f"{subject.name}: agent step", size) as progress:
        rows = run_attempts(
            policy,
            Greedy(generator) if plan.greedy else generator,
            environment,
            subject.config,
            attempts=plan.attempts,
            budget=plan.budget,
            seed=plan.seed,
            on_progress=progress,
        )
    return measure(rows, plan.budget)


def _candidates(ours: Sequence[Subject], training: Sequence[Task], scripts: Path | None) -> dict[str, str]:
    """Name → fixed script: those of the folder named, else the embedded ones and those that the runs wrote."""
    from workbench.learning.baselines import FOLDER, own_scripts, read_scripts
    from workbench.run import Run

    candidates = read_scripts(scripts or FOLDER)
    if scripts is None:
        by_id = {task.id: task for task in training}
        for subject in ours:
            own = own_scripts(Run(subject.run), by_id) if subject.run is not None else {}
            candidates |= {f"{subject.name}, {name}": code for name, code in own.items()}
    return candidates


def _fixed(
    candidates: Mapping[str, str],
    training: Sequence[Task],
    chosen: Sequence[Task],
    environment: Environment,
    work: Work,
) -> Baseline:
    from workbench.learning.baselines import best_fixed_script

    environment.tasks = {task.id: task for task in (*chosen, *training)}
    with work.phase("fixed scripts", len(candidates) * len(training) + len(chosen)) as progress:
        return best_fixed_script(candidates, environment, training, chosen, progress)


def _totals(result: Mapping[str, Any]) -> dict[str, Any]:
    """A summary without its parts: what is told of another policy, and of each of several runs."""
    return {name: value for name, value in result.items() if name not in ("tasks", "failures")}


def draw(result: Mapping[str, Any], path: Path) -> None:
    """The curve of the position as an SVG file, beside that of what it is compared with."""
    from workbench.views.budgets import budget_curve
    from workbench.views.svg import to_svg

    curves = {str(result["subject"]): result["curve"]}
    if "against" in result:
        name = str(result["against"]["subject"])
        curves[f"{name}, again" if name in curves else name] = result["against"]["curve"]
    try:
        path.write_text(to_svg(budget_curve(curves), label="position against the number of agent steps"), "utf-8")
    except OSError as error:
        raise WorkbenchError(
            f"The figure '{path}' cannot be written ({error.strerror}): choose another file with --figure."
        ) from None
