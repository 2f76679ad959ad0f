"""One training run: the numbered stages of a step, checkpoints, exact resume, and the measurement at the end.

The mathematics is elsewhere (advantages.py, losses.py, sampler.py); this file says in which order it happens.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from workbench.agent.environment import Environment
from workbench.agent.generate import HFGenerator
from workbench.agent.memory import give_back_memory
from workbench.agent.policy import Policy, default_learning_rate, load_policy
from workbench.agent.rollout import tasks_by_id
from workbench.config import Config, change
from workbench.control import Control, StopRequested
from workbench.learning.acting import Actor
from workbench.learning.advantages import group_advantages
from workbench.learning.batch import Sample, make_samples
from workbench.learning.checkpoints import every_s, read_checkpoint, seed_all, write_checkpoint
from workbench.learning.episodes import spread
from workbench.learning.evaluate import Progress, measure_drafts
from workbench.learning.metrics import StageTimer, Summary, due, dues_left, kept_out_metrics, rollout_metrics, warning
from workbench.learning.opening import checkpoint_step, create_run, keep_apart, measures, open_training
from workbench.learning.pace import Pace
from workbench.learning.sampler import Curriculum
from workbench.learning.strategies import flat_handling
from workbench.learning.update import decay, make_optimizer, update
from workbench.run import Run
from workbench.sandbox.executor import Executor, Limits
from workbench.tasks.catalog import load_tasks
from workbench.tasks.grader import Grader
from workbench.tasks.task import Task
from workbench.types import Group, Kind, State, WorkbenchError

GIVE_BACK = 20
"""Steps after which free memory is returned (our choice): the next one has to have it mapped again."""

_REASONS = frozenset({"dtype_reason"})
"""What the environment says in words; it decides no bits."""


def train(config: Config, run_path: Path | None = None, *, control: Control | None = None) -> Summary:
    """Create a run folder and train in it to the end. Raises WorkbenchError, or StopRequested when stopped."""
    run = create_run(config, run_path)
    return train_in(run, control or Control(config))


def resume(run_path: Path, steps: int | None = None) -> Summary:
    """Continue a run exactly from its last checkpoint; `steps` extends (or shortens) its length."""
    return train_in(*open_training(run_path, steps))


def train_in(run: Run, control: Control) -> Summary:
    """Train in an open run until its last step, then measure; the run is closed and its executor ended in any case."""
    trainer: Trainer | None = None
    try:
        trainer = Trainer(run, control)
        trainer.run_steps()
        return trainer.finish()
    except torch.OutOfMemoryError:
        config = control.config
        raise WorkbenchError(
            f"The device ran out of memory with micro_batch_tokens={config.micro_batch_tokens} and "
            f"group_size={config.group_size}: start a run with smaller ones; what '{run.path}' has recorded is kept."
        ) from None
    finally:
        if trainer:
            trainer.close()
        run.close()


class Trainer:
    """Orchestration of one run. Built from the run folder alone, so that starting and resuming are one path."""

    def __init__(self, run: Run, control: Control) -> None:
        self.run, self.control = run, control
        config = control.config
        self.started = time.monotonic()
        control.report(phase="loading the policy")
        torch.set_num_threads(config.threads)
        repo = config.mlebench_repo
        self.tasks = tasks_by_id(load_tasks(config.tasks, mlebench_repo=repo))
        self.held_out = tasks_by_id(load_tasks(config.eval_tasks, mlebench_repo=repo)) if measures(config) else {}
        keep_apart(self.tasks, self.held_out)  # a name such as `train` may have come to mean more since the run began
        self.executor = start_executor(config, [*self.tasks.values(), *self.held_out.values()])
        self.grader = Grader()
        self.policy = self._load_policy(config)
        self.generator = HFGenerator(self.policy)
        self.optimizer = make_optimizer(self.policy, self.learning_rate(config, 1))
        roots = [State(task_id, Kind.DRAFT) for task_id in sorted(self.tasks)]
        self.curriculum = Curriculum(config, roots, config.steps, run)
        self.step_done = 0
        self.pace = Pace()
        self._record_s = 0.0
        self._inexact: str | None = None
        control.report(phase="starting the sandbox")
        try:
            self.grader.start()
            self.executor.start()
            self.environment = self._environment(self.tasks, config, store=True)
            self.actor = Actor(self.policy, self.generator, self.environment, self.curriculum, self._acting)
            self._restore()
        except BaseException:
            self.close()
            raise

    def _load_policy(self, config: Config) -> Policy:
        """The policy as it was when the run began: a number format that was probed then is not probed again."""
        dtype = self.run.environment.get("dtype", config.dtype)
        return load_policy(change(config, dtype=dtype))

    def learning_rate(self, config: Config, step: int) -> float:
        """The step size of `step`: as set, or by policy size, times its decay."""
        rate = config.learning_rate if config.learning_rate is not None else default_learning_rate(self.policy)
        return rate * decay(step, config)

    # --- the loop

    def run_steps(self) -> None:
        """Steps until the configured last one. Raises StopRequested at a step boundary, with the steps done saved."""
        try:
            for step in itertools.count(self.step_done + 1):
                config = self.control.boundary(step)
                if step > config.steps:
                    break
                self.step(config, step)
        except StopRequested:
            self._leave()
            raise
        self._leave()

    def _leave(self) -> None:
        """Keep what no step will record any more: the knobs settled at the last boundary, and the last weights."""
        self._record_knobs()
        if self.step_done > checkpoint_step(self.run):
            self._checkpoint(self.step_done)

    def _record_knobs(self) -> None:
        self.run.record_knobs(self.step_done + 1, self.control.drain_events())

    def step(self, config: Config, step: int) -> dict[str, float]:
        """One step: choose, act, score, observe, grow, advantages, update, record. Returns its metrics."""
        timer = StageTimer()
        timer.seconds["record"] = self._record_s  # of the step before: a step's own ends after its row is written
        timer.start -= self._record_s
        self.curriculum.update(config)
        self.environment.begin(step)
        start = self._kept_out(config, timer, "_start") if config.eval_every and step == 1 else {}
        self.generator.forget()  # a step that did not change the weights would leave more than a resumed run has
        acted = self.actor.act(config, step, timer)  # 1 choose, 2 act, 3 score, 4 and 5 let the curriculum know
        groups = acted.groups
        version = self.policy.version
        with timer("advantages"):  # 6 group-relative advantages
            advantages, advantage_metrics = group_advantages(
                [[turn.reward.total if turn.reward else None for turn in group.turns] for group in acted.starts],
                config.advantage_scale,
            )
            advantages = spread(acted.starts, advantages, groups)
            restrained = config.kl_coef > 0 and flat_handling(config) == "keep"
            samples, sample_metrics = make_samples(
                groups, advantages, version, config.max_staleness, keep_flat=restrained
            )
        with timer("update"):  # 7 whole-step denominators
            update_metrics = self._update(config, samples, step)
        along = self._kept_out(config, timer) if due(step, config) else {}
        metrics = {
            **rollout_metrics(acted.rollouts, groups, self.tasks, version),
            **start,
            **along,
            "redraws": float(len(acted.drawn) - 1),
            "groups_redrawn": float(sum(acted.drawn[1:])),
            **advantage_metrics,
            **sample_metrics,
            **update_metrics,
            **self.curriculum.metrics(),
            **timer.metrics(),
            "version": float(self.policy.version),
            "learning_rate": self.learning_rate(config, step),
            "learning_rate_base": self.learning_rate(config, 0),
        }
        tokens = sum(len(turn.action.token_ids) for group in groups for turn in group.turns)
        metrics["tokens_per_s"] = tokens / max(metrics["seconds"], 1e-9)
        self._record(config, step, groups, metrics)  # 8 one transaction, then the checkpoint
        if step % GIVE_BACK == 0:
            give_back_memory()
        return metrics

    def _acting(self, done: int, total: int) -> None:
        self.control.report(phase="acting", done=done, total=total)

    def _update(self, config: Config, samples: Sequence[Sample], step: int) -> dict[str, float]:
        self.control.report(phase="updating", done=0, total=1)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(config, step)
        return update(self.policy, self.optimizer, samples, config)

    def _kept_out(self, config: Config, timer: StageTimer, when: str = "") -> dict[str, float]:
        """Kept-out drafts of the policy as it is, as numbers of the step in progress. Nothing that a later step draws
        from, counts or reads is touched."""

        def progress(done: int, total: int) -> None:
            self.control.report(phase="measuring along training", done=done, total=total)

        def whole(done: int, total: int) -> None:
            self.pace.add_drafts(done, time.monotonic() - started)

        started = time.monotonic()
        with timer("measure"):
            found = self._drafts(self.policy, config, config.eval_every_drafts, progress, whole)
        return kept_out_metrics(found, when)

    def _record(self, config: Config, step: int, groups: Sequence[Group], metrics: Mapping[str, float]) -> None:
        started = time.perf_counter()
        self.run.commit(
            step,
            groups=groups,
            metrics=metrics,
            curriculum_events=self.curriculum.drain_events(),
            states=self.curriculum.drain_states(),
            snapshot=self.curriculum.drain_snapshot(),
            knob_events=self.control.drain_events(),
        )
        self.step_done = step
        acting_s = metrics["seconds_generate"] + metrics["seconds_execute"]
        self.pace.add_step(metrics["seconds"], acting_s, sum(len(group.turns) for group in groups))
        if time.monotonic() - self._checkpointed >= every_s(config, self.policy) or step >= config.steps:
            self._checkpoint(step)
        self._record_s = time.perf_counter() - started
        drafts = 2 * config.eval_drafts + dues_left(step, config) * config.eval_every_drafts
        self.control.report(
            phase="training",
            step=step,
            steps=config.steps,
            reward=metrics.get("reward_mean"),
            valid_action_rate=metrics.get("valid_action_rate"),
            tokens_per_s=metrics["tokens_per_s"],
            eta_s=self.pace.left_s(config.steps - step, drafts * len(self.held_out)),
            warning=warning(config, metrics) or self._inexact,
        )

    # --- checkpoints

    def _checkpoint(self, step: int) -> None:
        def write(folder: Path) -> None:
            write_checkpoint(folder, step, self.policy, self.optimizer, self.curriculum.state_dict())

        self.run.save_checkpoint(step, write)
        self._checkpointed = time.monotonic()

    def _restore(self) -> None:
        """Continue from the latest checkpoint: weights, optimizer, RNGs, version; the curriculum from its events."""
        self._checkpointed = time.monotonic()
        latest = self.run.latest_checkpoint()
        if latest is None:
            self.run.truncate(0)
            self.run.set_environment(self._describe())
            seed_all(self.run.config.seed)
            return
        self.step_done, folder = latest
        state = read_checkpoint(folder, self.policy, self.optimizer)  # before anything is dropped
        self.run.truncate(self.step_done)
        self._compare()
        self.curriculum.reopen(self.run)
        self.curriculum.load_state_dict(state)

    def _compare(self) -> None:
        """Say, and keep in the run, what differs here from the start of the run and so may change its bits."""
        now = self._describe()
        known = self.run.environment
        changed = [key for key in known if now.get(key) != known[key] and key not in _REASONS]
        before = self.run.meta("resumes") or []
        resumes = [entry for entry in before if entry["step"] <= self.step_done]
        if changed:
            self._inexact = f"resume is not exact: {', '.join(changed)} differ from the start of the run"
            self.control.report(warning=self._inexact)
            resumes.append({"step": self.step_done, "changed": changed, "environment": now})
        if resumes != before:
            self.run.set_meta("resumes", resumes)

    def _describe(self) -> dict[str, Any]:
        tasks = repr([(task_id, task.digest()) for task_id, task in sorted(self.tasks.items())])
        machine = {"isolation_level": self.executor.level, "cpus": os.cpu_count()}
        return {**self.policy.environment(), **machine, "tasks": hashlib.sha256(tasks.encode()).hexdigest()[:16]}

    # --- the end

    def finish(self) -> Summary:
        """Measure start and trained policy on the kept-out tasks, keep both in the run, return the summary."""
        config = self.control.config
        after = before = None
        if config.eval_drafts:
            after = self._measured(f"after step {self.step_done}", config)
            before = self._measured("before training", config, start=True)
        summary = Summary(
            run=str(self.run.path),
            report=str(self.run.path / "report.html"),
            steps=self.step_done,
            seconds=round(float(self.run.metrics()["seconds"].sum()), 1) if self.step_done else 0.0,
            valid_before=before["valid_action_rate"] if before else None,
            valid_after=after["valid_action_rate"] if after else None,
            reward_before=before["reward"] if before else None,
            reward_after=after["reward"] if after else None,
            seed=config.seed,
        )
        self._record_knobs()
        self.run.set_meta("summary", {**summary.as_dict(), "before": before, "after": after})
        self.control.report(phase="finished", eta_s=None)
        return summary

    def _measured(self, when: str, config: Config, *, start: bool = False) -> dict[str, Any]:
        """Measure single drafts on the kept-out tasks, of the policy as it is or as it was at the `start`; what the run
        holds already is not measured again."""
        known = self.run.meta(f"drafts {when}")
        if known is not None:
            return known

        def progress(done: int, total: int) -> None:
            if self.control.stop_requested:
                self._record_knobs()
                raise StopRequested(f"stopped while measuring the policy {when}")
            self.control.report(phase=f"measuring the policy {when}", done=done, total=total)

        def whole(done: int, total: int) -> None:
            self.pace.add_drafts(done, time.monotonic() - started)
            left = total - done if start else 2 * total - done  # the start is measured last
            self.control.report(eta_s=self.pace.left_s(0, left))

        progress(0, config.eval_drafts * len(self.held_out))
        in_place = not start or self.policy.keeps_start  # a second model only where its start is kept nowhere
        policy = self.policy if in_place else self._load_policy(config)
        started = time.monotonic()
        with self.policy.reference() if start and in_place else nullcontext():
            found = self._drafts(policy, config, config.eval_drafts, progress, whole)
        self.run.set_meta(f"drafts {when}", found)
        return found

    def _drafts(
        self, policy: Policy, config: Config, drafts: int, progress: Progress, whole: Progress | None = None
    ) -> dict[str, Any]:
        return measure_drafts(
            policy,
            HFGenerator(policy),
            self._environment(self.held_out, config, store=False),
            config,
            drafts=drafts,
            seed=config.seed,
            on_progress=progress,
            on_batch=whole,
        )

    def _environment(self, tasks: Mapping[str, Task], config: Config, *, store: bool) -> Environment:
        limits = Limits(cpu_s=config.cpu_s, wall_s=config.wall_s, memory_mb=config.memory_mb)
        kept = self.run if store else None
        return Environment(tasks, self.executor, limits, seed=config.seed, store=kept, grader=self.grader)

    def close(self) -> None:
        """End the sandbox and the grader, return what memory is free."""
        self.executor.close()
        self.grader.close()
        give_back_memory()


def start_executor(config: Config, tasks: Sequence[Task]) -> Executor:
    """The executor for these tasks, not yet started."""
    roots = sorted({task.public_dir for task in tasks})
    return Executor(data_roots=roots, workers=config.workers, min_level=config.min_level, unsafe=config.unsafe_executor)
