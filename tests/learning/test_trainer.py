"""The trainer in this process, with a real policy, sandbox and run folder: what a step counts, keeps and leaves out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from transformers.utils import logging as transformers_logging

from workbench.config import Config, change, make_config
from workbench.control import Control
from workbench.learning import evaluate, runner
from workbench.learning.trainer import REDRAWS, Trainer, config_at, create_run, resume, train
from workbench.run import Run
from workbench.sandbox.executor import Request, Result
from workbench.types import Verdict, WorkbenchError

Make = Callable[..., Trainer]


@pytest.fixture
def settings(policy_folder: Path) -> Config:
    return make_config(
        policy=str(policy_folder),
        steps=4,
        tasks="used-cars,delivery-time,loan-missing",
        groups=2,
        group_size=4,
        max_prompt_tokens=512,
        max_completion_tokens=4,
        eval_drafts=0,
        tau=0,
        learning_rate=0.003,
        device="cpu",
        dtype="float32",
    )


@pytest.fixture
def make(settings: Config, tmp_path: Path) -> Iterator[Make]:
    """`make(**settings)`: a trainer in a new run."""
    made: list[Trainer] = []

    def build(**values: Any) -> Trainer:
        config = change(settings, **values)
        run = create_run(config, tmp_path / f"run{len(made)}")
        made.append(Trainer(run, Control(config)))
        return made[-1]

    yield build
    for trainer in made:
        trainer.close()
        trainer.run.close()


def weights(trainer: Trainer) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in trainer.policy.trainable()]


def test_lost_executions_are_left_out_of_every_denominator(make: Make) -> None:
    trainer = make()
    submit, lost = trainer.executor.submit, []

    def losing(request: Request) -> Future[Result]:
        """Every second script is lost by us."""
        future = submit(request)
        if len(lost) % 2:
            result = replace(future.result(), verdict=Verdict.INFRASTRUCTURE, submission=None)
            future = Future()
            future.set_result(result)
        lost.append(request.code)
        return future

    trainer.executor.submit = losing  # type: ignore[method-assign]
    metrics = trainer.step(trainer.control.config, 1)
    turns = trainer.run.turns()
    gone = turns["verdict"] == "infrastructure"
    assert 0 < gone.sum() < len(turns)
    kept = turns[~gone]
    assert turns[gone]["reward"].isna().all()
    assert metrics["unscorable"] == gone.sum()
    assert metrics["reward_mean"] == pytest.approx(kept["reward"].mean())
    assert metrics["valid_rate"] == pytest.approx(kept["score"].notna().mean())
    assert metrics["samples"] + metrics["samples_flat"] <= len(kept)
    children = trainer.run.states()["code"].tolist()
    assert not set(turns[gone]["code"]) - set(kept["code"]) & set(children)
    stored = trainer.environment.store
    assert stored is not None
    again = trainer.step(trainer.control.config, 2)
    assert again["unscorable"] < 8, "a result that was lost is not kept for later"


def test_equal_rewards_give_no_gradient(make: Make, build_policy: Callable[..., Path], tmp_path: Path) -> None:
    prose = build_policy(tmp_path / "prose", ["I do not know.\n", "Who knows?\n"])
    trainer = make(policy=str(prose))
    before = weights(trainer)
    metrics = trainer.step(trainer.control.config, 1)
    assert all(torch.equal(a, b) for a, b in zip(before, weights(trainer), strict=True))
    assert (metrics["reward_mean"], metrics["flat_share"], metrics["groups_used"]) == (0, 1, 0)
    assert (metrics["samples"], metrics["samples_flat"]) == (0, 8)
    assert metrics["version"] == 0
    assert "raise group_size or change the tasks" in trainer.control.progress()["warning"]
    assert trainer.run.meta("nothing") is None
    assert trainer.curriculum.metrics()["buffer_states"] == 3, "no script, no new state"


def test_dapo_draws_again_for_flat_groups_and_gives_up(
    make: Make, build_policy: Callable[..., Path], tmp_path: Path
) -> None:
    prose = build_policy(tmp_path / "prose", ["I do not know.\n", "Who knows?\n"])
    trainer = make(policy=str(prose), strategy="dapo", groups=1)
    metrics = trainer.step(trainer.control.config, 1)
    assert metrics["redraws"] == 2, "three tasks: one group, two more, then none is left"
    assert REDRAWS > 2
    assert metrics["choices_missing"] == 1
    turns = trainer.run.turns()
    assert turns["group_id"].nunique() == 3
    assert turns["state"].nunique() == 3
    assert trainer.step(trainer.control.config, 2)["redraws"] == 2
    ordinary = make(strategy="dapo", groups=1)
    metrics = ordinary.step(ordinary.control.config, 1)
    assert metrics["groups_used"] == 1
    assert len(ordinary.run.turns()) == 4 * (1 + metrics["redraws"])


def test_completions_cut_at_the_limit_are_told(make: Make) -> None:
    trainer = make(max_completion_tokens=1)
    assert trainer.step(trainer.control.config, 1)["clipped_completions"] > 0.9
    assert "max_completion_tokens=1: raise it" in trainer.control.progress()["warning"]


def test_a_longer_run_stays_longer_after_a_kill(settings: Config, tmp_path: Path) -> None:
    path = tmp_path / "run"
    assert train(change(settings, steps=1), path).steps == 1
    assert resume(path, steps=2).steps == 2
    with Run.open(path) as run:
        assert config_at(run).steps == 2
        events = run.knob_events()
    assert events[["step", "knob", "old", "new", "source", "outcome"]].values.tolist() == [
        [2, "steps", 1, 2, "resume", "applied"]
    ]
    assert resume(path).steps == 2
    assert len(Run(path).metrics()) == 2


def test_policies_are_measured_before_and_after_on_other_tasks(settings: Config, tmp_path: Path) -> None:
    path = tmp_path / "run"
    config = change(settings, steps=2, eval_drafts=4, eval_tasks="diamonds", learning_rate=0.03)
    summary = train(config, path)
    run = Run(path)
    before, after = run.meta("drafts before training"), run.meta("drafts after step 2")
    assert (summary.valid_before, summary.valid_after) == (before["valid_action_rate"], after["valid_action_rate"])
    assert set(before["tasks"]) == set(after["tasks"]) == {"diamonds"}
    assert before["drafts"] == after["drafts"] == 4
    assert before != after
    quiet = train(change(config, eval_drafts=0), tmp_path / "quiet")
    assert quiet.valid_before is None
    texts = [Run(folder).turns()["text"].tolist() for folder in (path, tmp_path / "quiet")]
    assert texts[0] == texts[1], "measuring changes no rollout"
    saved = run.latest_checkpoint()
    assert saved is not None
    fresh = train(change(config, steps=1, eval_drafts=0, policy=str(saved[1] / "policy")), tmp_path / "fresh")
    assert fresh.steps == 1, "the weights alone start a new run"


def test_every_draft_asked_for_is_measured_whatever_one_call_holds(
    make: Make, build_policy: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prose = build_policy(tmp_path / "prose", [f"I have {n} ideas.\n" for n in range(9)])
    trainer = make(policy=str(prose), tasks="used-cars")
    monkeypatch.setattr(evaluate, "DRAFTS_PER_PROMPT", 2)
    told: list[tuple[int, int]] = []
    measures = evaluate.measure_drafts(
        trainer.policy,
        trainer.generator,
        trainer.environment,
        trainer.control.config,
        drafts=3,
        seed=0,
        on_progress=lambda done, total: told.append((done, total)),
    )
    assert measures["drafts"] == measures["tasks"]["used-cars"]["drafts"] == 3
    assert told == [(1, 3), (2, 3), (3, 3)]
    assert measures["tasks"]["used-cars"]["distinct"] == 3, "no call repeats the draws of the one before"


def test_tasks_for_measuring_must_be_kept_out(settings: Config, tmp_path: Path) -> None:
    with pytest.raises(WorkbenchError, match="share used-cars: evaluation tasks must be kept out of training"):
        create_run(change(settings, eval_drafts=4, eval_tasks="used-cars"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_number_format_that_was_probed_is_not_probed_again(settings: Config, tmp_path: Path) -> None:
    config = change(settings, dtype="auto", steps=1)
    train(config, tmp_path / "run")
    with Run.open(tmp_path / "run") as run:
        assert run.environment["dtype"] == "float32"
        run.set_environment({**run.environment, "dtype": "bfloat16", "dtype_reason": "a probe", "cpus": 9999})
        control = Control(config)
        trainer = Trainer(run, control)
        trainer.close()
    assert trainer.policy.dtype is torch.bfloat16
    assert control.progress()["warning"] == "resume is not exact: cpus differ from the start of the run"


def test_a_damaged_checkpoint_is_told_and_the_sandbox_ends(settings: Config, tmp_path: Path) -> None:
    path = tmp_path / "run"
    train(change(settings, steps=1), path)
    latest = Run(path).latest_checkpoint()
    assert latest is not None
    (latest[1] / "policy" / "model.safetensors").write_bytes(b"no weights")
    children = {process.pid for process in psutil.Process().children(recursive=True)}
    with pytest.raises(WorkbenchError, match="cannot be loaded"):
        resume(path)
    assert {process.pid for process in psutil.Process().children(recursive=True)} <= children
    with Run.open(path):
        pass  # and the folder is free again


def test_nothing_is_printed_from_the_training_thread(
    settings: Config, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """In a notebook it would land in whatever cell was run last. The loaders' bars are on, as they are by default."""
    transformers_logging.enable_progress_bar()
    try:
        training = runner.start(change(settings, steps=1), tmp_path / "run")
        summary = training.wait()
    finally:
        transformers_logging.disable_progress_bar()
    assert summary is not None
    assert summary.steps == 1
    assert tuple(capfd.readouterr()) == ("", "")


def test_one_training_at_a_time_and_the_same_cell_gives_the_same_one(settings: Config, tmp_path: Path) -> None:
    config = change(settings, steps=1000)
    training = runner.start(config, tmp_path / "run")
    try:
        assert runner.start(config, tmp_path / "run") is training
        assert runner.start(config) is training
        with pytest.raises(WorkbenchError, match="A run is going on in"):
            runner.start(config, tmp_path / "other")
        with pytest.raises(WorkbenchError, match="is being written by process"):
            Run.open(tmp_path / "run")
    finally:
        training.control.stop()
        assert training.wait() is None
    assert training.control.status == "idle"
    again = runner.start(config, tmp_path / "run")
    assert again is not training
    again.control.stop()
    assert again.wait() is None
