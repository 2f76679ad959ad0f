"""The trainer in this process, with a real policy, sandbox and run folder: what a step counts, keeps and leaves out."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest
import torch
from transformers.utils import logging as transformers_logging

from workbench.agent.prompts import messages
from workbench.config import Config, change, make_config
from workbench.control import Control, StopRequested
from workbench.learning import evaluate, runner
from workbench.learning import trainer as trainer_module
from workbench.learning.curves import kept_out_curve
from workbench.learning.opening import create_run, open_training
from workbench.learning.trainer import Trainer, resume, train, train_in
from workbench.run import Run
from workbench.sandbox.executor import Executor, Request, Result
from workbench.tasks.catalog import load_tasks
from workbench.tasks.grader import Grader
from workbench.tasks.mle import MleTask
from workbench.types import Action, StopReason, Verdict, WorkbenchError

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


class Kept:
    """An executor or a grader that outlives the trainers it is lent to: its processes take seconds to start."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def kept() -> Iterator[tuple[Executor, Grader]]:
    grader = Grader()
    with trainer_module.start_executor(make_config(), load_tasks("all")) as executor:
        yield executor, grader
    grader.close()


@pytest.fixture
def own_sandbox() -> None:
    """For a test that harms its sandbox, or looks at how it ends."""


@pytest.fixture(autouse=True)
def lend(request: pytest.FixtureRequest, kept: tuple[Executor, Grader], monkeypatch: pytest.MonkeyPatch) -> None:
    if "own_sandbox" not in request.fixturenames:
        monkeypatch.setattr(trainer_module, "start_executor", lambda *_: Kept(kept[0]))
        monkeypatch.setattr(trainer_module, "Grader", lambda: Kept(kept[1]))


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


@pytest.fixture
def reopen() -> Iterator[Callable[..., Trainer]]:
    """`reopen(trainer, steps)`: what a resume makes of the folder that a trainer left in the middle of its work."""
    made: list[Trainer] = []

    def again(trainer: Trainer, steps: int | None = None) -> Trainer:
        trainer.close()
        trainer.run.close()
        made.append(Trainer(*open_training(trainer.run.path, steps)))
        return made[-1]

    yield again
    for trainer in made:
        trainer.close()
        trainer.run.close()


def one_step(trainer: Trainer) -> dict[str, float]:
    """The next step, as `run_steps` makes it."""
    step = trainer.step_done + 1
    return trainer.step(trainer.control.boundary(step), step)


def knobs_of(run: Run) -> list[list[object]]:
    return run.knob_events()[["step", "knob", "old", "new", "source", "outcome"]].values.tolist()


def weights(trainer: Trainer) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in trainer.policy.trainable()]


def test_a_sandbox_that_is_gone_ends_the_training(
    own_sandbox: None, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make()
    monkeypatch.setattr("workbench.sandbox.outer.command", lambda *_: ["/bin/false"])
    for zygote in trainer.executor._zygotes.values():
        zygote.kill()
    with pytest.raises(WorkbenchError, match="workbench doctor"):
        one_step(trainer)
    assert trainer.run.last_step() == 0


def test_nothing_is_learnt_or_measured_where_no_script_could_be_run(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sandbox lives, and yet each script is lost."""
    trainer = make(eval_drafts=4, eval_tasks="storm-phase")

    def losing(request: Request) -> Future[Result]:
        future: Future[Result] = Future()
        result = submit(request).result()
        future.set_result(replace(result, verdict=Verdict.INFRASTRUCTURE, submission=None, reason="no mount"))
        return future

    submit = trainer.executor.submit
    monkeypatch.setattr(trainer.executor, "submit", losing)
    with pytest.raises(WorkbenchError, match=r"Not one of \d+ scripts could be run in the sandbox \(no mount\)"):
        one_step(trainer)
    with pytest.raises(WorkbenchError, match="Not one of 4 scripts could be run"):
        trainer.finish()
    assert trainer.run.last_step() == 0
    assert trainer.run.meta("drafts before training") is None


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
    assert metrics["valid_action_rate"] == pytest.approx(kept["score"].notna().mean())
    assert metrics["groups_dropped"] == 0
    assert metrics["samples"] + metrics["samples_flat"] + metrics["samples_empty"] == len(kept)
    assert metrics["staleness_max"] == 0, "acted with the weights that are updated"
    added = [event["state_id"] for event in trainer.run.curriculum_events(since=1) if event["event"] == "added"]
    grown = {state.code for state in trainer.run.find_states(added).values()}
    assert grown & set(kept["code"])
    only_lost = set(turns[gone]["code"]) - set(kept["code"])
    assert only_lost
    assert not only_lost & grown
    trainer.executor.submit = submit  # type: ignore[method-assign]
    row = turns[gone & turns["code"].isin(only_lost)].iloc[0]
    again = trainer.environment.submit(row["task"], Action(row["text"], (), (), 0, StopReason.EOS))()
    assert again.feedback.verdict is not Verdict.INFRASTRUCTURE, "a result that was lost is not kept for later"


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
    assert trainer.curriculum.metrics()["buffer_states"] == 3, "no script, no new state"


def test_dapo_draws_again_for_flat_groups_and_gives_up(
    make: Make, build_policy: Callable[..., Path], tmp_path: Path
) -> None:
    prose = build_policy(tmp_path / "prose", ["I do not know.\n", "Who knows?\n"])
    trainer = make(policy=str(prose), strategy="dapo", groups=1)
    metrics = trainer.step(trainer.control.config, 1)
    assert metrics["redraws"] == metrics["groups_redrawn"] == 2, "three tasks: one group, two more, then none is left"
    assert metrics["choices_missing"] == 1
    turns = trainer.run.turns()
    assert turns["group_id"].nunique() == 3
    assert turns["state"].nunique() == 3
    assert trainer.step(trainer.control.config, 2)["redraws"] == 2
    ordinary = make(strategy="dapo", groups=1)
    metrics = ordinary.step(ordinary.control.config, 1)
    assert metrics["groups_used"] == 1
    assert len(ordinary.run.turns()) == 4 * (1 + metrics["redraws"])


@pytest.mark.parametrize(("limit", "groups"), [(0, 2), (1, 3), (12, 3)])
def test_redrawing_ends_at_its_limit_with_the_step_done(
    make: Make, build_policy: Callable[..., Path], tmp_path: Path, limit: int, groups: int
) -> None:
    """All rewards are equal: at most so many groups more are acted in, never one twice, and the run goes on."""
    prose = build_policy(tmp_path / "prose", ["I do not know.\n", "Who knows?\n"])
    trainer = make(policy=str(prose), flat_groups="redraw", redraw_limit=limit)
    metrics = one_step(trainer)
    assert (metrics["groups_redrawn"], metrics["groups_used"], metrics["flat_share"]) == (groups - 2, 0, 1)
    assert len(trainer.run.turns()) == 4 * groups, "what was acted is recorded"
    chosen = [event["state_id"] for event in trainer.run.curriculum_events() if event["event"] == "chosen"]
    assert len(set(chosen)) == len(chosen) == groups
    assert (metrics["choices_missing"] > 0) == (limit > 1), "asked for two more, of three states one was left"
    assert trainer.run.last_step() == 1


@pytest.mark.parametrize(("handling", "samples"), [("keep", 8), ("drop", 0), ("redraw", 0)])
def test_only_kept_flat_groups_feel_a_kl_term(
    make: Make, build_policy: Callable[..., Path], tmp_path: Path, handling: str, samples: int
) -> None:
    prose = build_policy(tmp_path / "prose", ["I do not know.\n", "Who knows?\n"])
    metrics = one_step(make(policy=str(prose), flat_groups=handling, redraw_limit=0, kl_coef=0.01))
    assert (metrics["samples"], metrics["samples_flat"]) == (samples, 8)


def test_redrawn_groups_grow_the_curriculum_are_counted_and_resume_bit_by_bit(
    make: Make, reopen: Callable[..., Trainer]
) -> None:
    settings = {"flat_groups": "redraw", "redraw_limit": 3, "group_size": 2, "reward": "ladder:0.7,gain:0.3"}
    whole, other = make(**settings), make(**settings)
    for _ in range(4):
        one_step(whole)
    one_step(other)
    one_step(other)
    again = reopen(other)
    one_step(again)
    one_step(again)
    metrics = whole.run.metrics()
    assert metrics["groups_redrawn"].max() > 0
    assert (metrics["groups_redrawn"] <= 3).all()
    assert (metrics["groups_used"] <= 2).all(), "no surplus: as many are asked for as are missing"
    turns, events = whole.run.turns(tokens=True), list(whole.run.curriculum_events())
    assert turns.groupby("step")["group_id"].nunique().tolist() == (2 + metrics["groups_redrawn"]).tolist()
    observed = [event["state_id"] for event in events if event["event"] == "observed"]
    assert len(observed) == turns["group_id"].nunique()
    assert metrics["executions"].sum() == turns.dropna(subset=["code"]).drop_duplicates(["task", "code"]).shape[0]
    times = ["cpu_s", "wall_s"]
    resumed = again.run.turns(tokens=True).drop(columns=times)
    pd.testing.assert_frame_equal(turns.drop(columns=times), resumed, check_exact=True)
    assert events == list(again.run.curriculum_events())
    assert all(torch.equal(a, b) for a, b in zip(weights(whole), weights(again), strict=True))


def test_gain_is_over_what_the_parent_reached_and_no_prompt_knows_it(make: Make) -> None:
    trainer = make(reward="ladder:0.5,gain:0.5", groups=4)
    for _ in range(4):
        metrics = one_step(trainer)
    turns, states = trainer.run.turns(), trainer.run.states().set_index("id")
    reached = {
        (row.task, row.code): row.components.get("position", 0.0) for row in turns.itertuples() if row.code is not None
    }
    judged = turns[turns["verdict"] != "infrastructure"]
    for row in judged.itertuples():
        if row.kind == "draft":
            assert "gain" not in row.components
            continue
        own = 0.0 if row.components["copied"] else row.components.get("position", 0.0)
        gain = own - reached[row.task, states.loc[row.state, "code"]]
        assert row.components["gain"] == pytest.approx(gain)
        assert row.reward == pytest.approx(max(0.0, 0.5 * row.components["ladder"] + 0.5 * gain))
    assert set(judged["kind"]) > {"draft"}
    last = judged[judged["step"] == 4]
    assert metrics["reward_component_ladder"] == pytest.approx(last["components"].map(lambda c: c["ladder"]).mean())
    hidden = {f"{score:.4g}" for score in turns["score"].dropna()}
    assert len(hidden) > 1
    shown = trainer.run.find_states(list(states.index)).values()
    assert {state.kind for state in shown} > {"draft"}
    for state in shown:
        text = messages(state, trainer.tasks[state.task], budget=8192, count=len)[0]["content"]
        assert not any(score in text for score in hidden if len(score) >= 5)


def test_completions_cut_at_the_limit_are_told(make: Make) -> None:
    trainer = make(max_completion_tokens=1)
    assert trainer.step(trainer.control.config, 1)["clipped_completions"] > 0.9
    assert "max_completion_tokens=1: raise it" in trainer.control.progress()["warning"]


def test_knobs_turned_after_the_last_checkpoint_are_turned_again_in_their_steps(
    make: Make, reopen: Callable[..., Trainer]
) -> None:
    settings = {"checkpoint_every_s": 3600.0, "steps": 5, "learning_rate_decay": 0.0}
    whole, trainer = make(**settings), make(**settings)
    for one in (whole, trainer):
        one_step(one)
        one._checkpoint(1)
        one_step(one)
        one.control.request("learning_rate", 1e-4, source="panel")
        one.control.request("temperature", 50.0)
        one_step(one)
        one.control.request("group_size", 2)
        one_step(one)
    record = knobs_of(trainer.run)
    assert [row[:2] for row in record] == [[3, "temperature"], [3, "learning_rate"], [4, "group_size"]]
    trainer = reopen(trainer)
    assert (trainer.step_done, trainer.control.config.learning_rate) == (1, 0.003)
    trainer.run_steps()
    whole.run_steps()
    assert knobs_of(trainer.run) == record
    assert trainer.run.metrics()["learning_rate"].tolist() == [0.003, 0.003, 1e-4, 1e-4, 1e-4]
    assert trainer.run.turns()["text"].tolist() == whole.run.turns()["text"].tolist()
    assert all(torch.equal(a, b) for a, b in zip(weights(trainer), weights(whole), strict=True))


def test_a_run_that_is_shortened_at_its_last_step_stays_so(make: Make, reopen: Callable[..., Trainer]) -> None:
    trainer = make(checkpoint_every_s=3600.0)
    one_step(trainer)
    trainer.control.request("steps", 1)
    trainer.run_steps()
    assert trainer.finish().steps == 1
    assert knobs_of(trainer.run) == [[2, "steps", 4, 1, "user", "applied"]]
    trainer = reopen(trainer)
    assert trainer.step_done == 1, "its last weights are saved, whenever the last checkpoint was"
    trainer.run_steps()
    assert trainer.finish().steps == 1


def test_a_stopped_run_keeps_its_last_step_and_what_was_asked(make: Make, reopen: Callable[..., Trainer]) -> None:
    trainer = make(checkpoint_every_s=3600.0)
    one_step(trainer)
    trainer.control.request("tau", -1)
    trainer.control.stop()
    with pytest.raises(StopRequested):
        trainer.run_steps()
    trainer = reopen(trainer)
    assert trainer.step_done == 1
    assert [row[-1] for row in knobs_of(trainer.run)] == ["refused"]


def test_a_step_costs_what_recording_the_one_before_took(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make(steps=3)
    save = trainer.run.save_checkpoint
    monkeypatch.setattr(trainer.run, "save_checkpoint", lambda *args: (time.sleep(0.5), save(*args)))
    first = one_step(trainer)
    assert trainer.control.progress()["eta_s"] is None, "the first step is no measure of those to come"
    second = one_step(trainer)
    assert first["seconds_record"] == 0
    assert second["seconds_record"] >= 0.5
    assert sum(value for name, value in second.items() if name.startswith("seconds_")) <= second["seconds"]
    eta = trainer.control.progress()["eta_s"]
    assert eta == pytest.approx(second["seconds"], abs=0.1)


def test_while_drafts_are_measured_the_time_to_go_is_that_of_whole_batches(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate, "DRAFTS_PER_PROMPT", 4)
    trainer = make(eval_drafts=8, eval_tasks="diamonds")
    seen: list[tuple[int, float | None]] = []
    report = trainer.control.report

    def kept(**progress: Any) -> None:
        report(**progress)
        now = trainer.control.progress()
        seen.append((now["done"], now["eta_s"]))

    monkeypatch.setattr(trainer.control, "report", kept)
    trainer._measured("after step 0", trainer.control.config)
    assert {done for done, _ in seen} == set(range(9))
    etas = dict(seen)  # the last of each
    assert [etas[done] for done in range(4)] == [None] * 4
    assert etas[4] is not None
    assert etas[8] is not None
    assert etas[4] > etas[8] > 0, "12 drafts are to go, then 8: the start is measured too"


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


def test_what_is_measured_follows_the_run(settings: Config, tmp_path: Path) -> None:
    path = tmp_path / "run"
    config = change(settings, steps=2, eval_drafts=2, eval_tasks="diamonds")
    train(config, path)
    run, control = open_training(path, 4)
    assert run.meta("summary") is None, "a run that was made longer has not reached its end"
    trainer = Trainer(run, control)
    one_step(trainer)
    trainer.close()
    run.close()
    assert run.meta("drafts after step 2") is not None
    (path / "latest").write_text("2\n")
    run, control = open_training(path, 3)
    assert train_in(run, control).steps == 3
    assert run.meta("summary")["after"] == run.meta("drafts after step 3")
    with Run.open(path) as run:
        run.set_meta("drafts after step 3", {"valid_action_rate": 0.5, "reward": 0.5})
    assert resume(path).reward_after == 0.5, "the same weights are not measured again"
    (path / "latest").write_text("2\n")
    assert resume(path).reward_after != 0.5, "other weights are"


@pytest.mark.parametrize(("values", "models"), [({"adapter": "lora"}, 1), ({"kl_coef": 0.1}, 1), ({}, 2)])
def test_the_start_is_measured_without_a_second_model_where_it_is_kept(
    settings: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: dict[str, Any], models: int
) -> None:
    config = change(settings, steps=2, eval_drafts=2, eval_tasks="diamonds", learning_rate=0.05, **values)
    loaded, load = [], trainer_module.load_policy
    monkeypatch.setattr(trainer_module, "load_policy", lambda config: loaded.append(config) or load(config))
    train(config, tmp_path / "run")
    assert len(loaded) == models
    trainer = Trainer(create_run(config, tmp_path / "start"), Control(config))
    trainer.finish()
    trainer.close()
    trainer.run.close()
    start = trainer.run.meta("drafts after step 0")
    assert start == Run(tmp_path / "run").meta("drafts before training") == trainer.run.meta("drafts before training")
    assert start != Run(tmp_path / "run").meta("drafts after step 2")


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


def test_a_resume_that_is_not_exact_is_told_and_recorded(
    make: Make, reopen: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make()
    one_step(trainer)
    assert trainer.run.meta("resumes") is None
    monkeypatch.setattr("os.cpu_count", lambda: 9999)
    trainer = reopen(trainer)
    one_step(trainer)
    assert "cpus differ" in trainer.control.progress()["warning"], "also once a step has reported"
    (entry,) = trainer.run.meta("resumes")
    assert (entry["step"], entry["changed"], entry["environment"]["cpus"]) == (1, ["cpus"], 9999)


def test_a_task_that_changed_since_the_run_began_is_told(
    make: Make, reopen: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make()
    one_step(trainer)
    monkeypatch.setattr(MleTask, "digest", lambda task: "other answers")
    trainer = reopen(trainer)
    assert "tasks differ" in trainer.control.progress()["warning"]
    assert trainer.run.meta("resumes")[0]["changed"] == ["tasks"]


def test_a_damaged_checkpoint_is_told_and_the_sandbox_ends(own_sandbox: None, settings: Config, tmp_path: Path) -> None:
    path = tmp_path / "run"
    train(change(settings, steps=1), path)
    latest = Run(path).latest_checkpoint()
    assert latest is not None
    (latest[1] / "policy" / "model.safetensors").write_bytes(b"no weights")
    children = {process.pid for process in psutil.Process().children(recursive=True)}
    with pytest.raises(WorkbenchError, match=r"policy' cannot be read .* older checkpoint into"):
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


def test_a_failed_training_keeps_no_policy(settings: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policies: list[weakref.ref[Any]] = []

    def fail(policy: Any, *_: Any) -> None:
        policies.append(weakref.ref(policy))
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(trainer_module, "update", fail)
    training = runner.start(settings, tmp_path / "run")
    for _ in range(2):
        with pytest.raises(WorkbenchError, match="ran out of memory with micro_batch_tokens=8192 and group_size=4"):
            training.wait()
    assert "ran out of memory" in training.traceback
    gc.collect()
    (policy,) = policies
    assert policy() is None


def test_a_run_that_cannot_be_gone_on_with_is_left_free(settings: Config, tmp_path: Path) -> None:
    path = tmp_path / "run"
    train(change(settings, steps=1), path)
    with pytest.raises(WorkbenchError, match="was started with seed=0, and 1 is asked for"):
        runner.start(change(settings, seed=1), path)
    (path / "latest").write_text("one\n")
    for _ in range(2):
        with pytest.raises(WorkbenchError, match="holds 'one', not a step"):
            runner.start(settings, path)
    with pytest.raises(WorkbenchError, match="holds 'one', not a step"):
        resume(path)
    (path / "latest").write_text("1\n")
    assert resume(path).steps == 1


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


def test_measuring_along_training_changes_nothing_but_its_own_figures(make: Make) -> None:
    """Bit-equal weights and turns, with it on and off; what was measured stands in the steps it was asked for."""
    plain, along = make(), make(eval_every=2, eval_every_drafts=3, eval_tasks="storm-phase,diamonds")
    for trainer in (plain, along):
        for _ in range(3):
            one_step(trainer)
    for a, b in zip(weights(plain), weights(along), strict=True):
        assert torch.equal(a, b)
    columns = ["text", "reward", "verdict", "policy_version"]
    assert plain.run.turns()[columns].equals(along.run.turns()[columns])
    assert plain.run.metrics()["executions"].equals(along.run.metrics()["executions"])
    measured = along.run.metrics()
    assert measured["kept_out_valid"].notna().tolist() == [False, True, False]
    assert measured["kept_out_valid_start"].notna().tolist() == [True, False, False]
    assert measured["seconds_measure"].iloc[1] > 0
    assert "kept_out_valid" not in plain.run.metrics()
    counts = measured["executions"].cumsum()
    assert [x for x, _ in kept_out_curve(measured, "reward")] == [0, counts[1]]
    assert kept_out_curve(plain.run.metrics(), "reward") == []
    one_step(along)
    assert along.run.metrics()["kept_out_reward"].notna().tolist() == [False, True, False, True]


def test_a_resumed_run_measures_along_training_as_if_it_had_not_stopped(
    make: Make, reopen: Callable[..., Trainer]
) -> None:
    whole, broken = (make(eval_every=1, eval_every_drafts=3, eval_tasks="storm-phase") for _ in range(2))
    for _ in range(3):
        one_step(whole)
    one_step(broken)
    broken = reopen(broken)
    one_step(broken)
    one_step(broken)
    for measure in ("valid", "reward"):
        assert kept_out_curve(whole.run.metrics(), measure) == kept_out_curve(broken.run.metrics(), measure)


def test_a_task_that_is_trained_on_is_not_measured_along_training(settings: Config, tmp_path: Path) -> None:
    with pytest.raises(WorkbenchError, match="share used-cars"):
        create_run(change(settings, eval_every=1, eval_tasks="used-cars"), tmp_path / "run")


def test_episodes_of_several_turns_are_credited_with_their_outcome_bit_by_bit(make: Make) -> None:
    trainer = make(episode_turns=3, buffer=False, steps=2)
    metrics = [one_step(trainer) for _ in range(2)]
    turns = trainer.run.turns(tokens=True)
    first = turns[turns["step"] == 1]
    by_trajectory = first.groupby("trajectory_id")
    assert len(by_trajectory) == 2 * 4
    assert by_trajectory["stage"].first().eq("draft#1").all()
    assert by_trajectory.size().max() == 3
    assert set(first["stage"]) > {"draft#1", "debug#1"}
    assert metrics[0]["executions"] > 8, "further turns are executions"
    assert metrics[0]["groups_used"] + metrics[0]["flat_share"] * 2 == 2, "advantages are taken within the two starts"
    assert len(trainer.curriculum.buffer) == 3, "the roots"
    kept = weights(trainer)
    times = [name for name in turns if name.endswith("_s")]
    again = make(episode_turns=3, buffer=False, steps=2)
    for _ in range(2):
        one_step(again)
    assert all(map(torch.equal, kept, weights(again)))
    pd.testing.assert_frame_equal(turns.drop(columns=times), again.run.turns(tokens=True).drop(columns=times))
