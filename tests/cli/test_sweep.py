"""Sweep files: what runs they make, and what is refused before anything starts."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from workbench.cli.sweep import Sweep, changes, notebook_words, read_sweep, train_words
from workbench.config import ROOT
from workbench.types import WorkbenchError

SWEEPS = sorted((ROOT / "notebooks" / "sweeps").glob("*.yaml"))


def read(tmp_path: Path, text: str) -> Sweep:
    file = tmp_path / "sweep.yaml"
    file.write_text(text)
    return read_sweep(file)


@pytest.mark.parametrize("file", SWEEPS, ids=lambda file: file.stem)
def test_the_sweeps_of_the_workbench_are_right(file: Path) -> None:
    assert read_sweep(file).jobs


def test_the_ablations_are_ten_pairs_by_seed() -> None:
    sweep = read_sweep(ROOT / "notebooks" / "sweeps" / "ablations.yaml")
    arms = list(dict.fromkeys(job.arm for job in sweep.jobs))
    assert arms[0] == "full"
    assert sorted(job.seed or 0 for job in sweep.jobs if job.arm == "full") == list(range(10))
    assert {job.settings["threads"] for job in sweep.jobs} == {1}
    assert len(sweep.jobs) == 10 * len(arms)


def test_runs_go_round_the_arms_within_a_seed(tmp_path: Path) -> None:
    text = """
        trainer: true
        parameters: {steps: 3}
        arms: [{name: full}, {name: roots only, buffer: false}]
        grid: {loss: [dapo, gspo]}
        seeds: [4, 0..1]
    """
    jobs = read(tmp_path, text).jobs
    assert [(job.seed, job.arm) for job in jobs[:4]] == [
        (4, "full loss=dapo"),
        (4, "full loss=gspo"),
        (4, "roots only loss=dapo"),
        (4, "roots only loss=gspo"),
    ]
    assert [job.seed for job in jobs[4:]] == [0] * 4 + [1] * 4
    assert jobs[2].settings == {"steps": 3, "buffer": False, "loss": "dapo", "seed": 4}
    assert jobs[0].varied == {"buffer": None, "loss": "dapo"}
    assert train_words(jobs[2].settings)[:4] == ["--set", "steps=3", "--set", "buffer=false"]


def test_names_are_those_of_the_settings(tmp_path: Path) -> None:
    """Equal in every reading and order of keys, another for other settings, and names of folders."""
    one = read(tmp_path, "trainer: true\nparameters: {steps: 3, tau: 1}\nseeds: [0, 1]")
    same = read(tmp_path, "seeds: [1, 0]\nparameters: {tau: 1, steps: 3}\ntrainer: true")
    other = read(tmp_path, "trainer: true\nparameters: {steps: 4, tau: 1}\nseeds: [0, 1]")
    assert {job.name for job in one.jobs} == {job.name for job in same.jobs}
    assert not {job.name for job in one.jobs} & {job.name for job in other.jobs}
    strange = read(tmp_path, "trainer: true\narms: [{name: ../ä b}]")
    assert strange.jobs[0].name.startswith("b-s0-")


def test_runs_side_by_side_have_one_thread_each(tmp_path: Path) -> None:
    assert read(tmp_path, "trainer: true\nparallel: 2").jobs[0].settings["threads"] == 1
    assert "threads" not in read(tmp_path, "trainer: true").jobs[0].settings
    assert read(tmp_path, "trainer: true\nparallel: 2\nparameters: {threads: 3}").jobs[0].settings["threads"] == 3


def test_settings_that_a_notebook_does_not_declare_go_into_its_settings(tmp_path: Path) -> None:
    sweep = read(tmp_path, "arms: [{name: roots, buffer: false, tau: 2}]\nparameters: {kl_coef: 0.01}\nseeds: [7]")
    assert notebook_words(sweep.jobs[0].settings, sweep.declared, Path("/r")) == [
        *("-p", "tau=2", "-p", "seed=7", "-p", "run_dir=/r"),
        *("-p", "settings=kl_coef=0.01, buffer=false"),
    ]
    assert sweep.limit_s == math.inf
    assert read(tmp_path, "parameters: {learning_rate: 0.0}").jobs, "the notebook's word for the trainer's choice"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("seeds: [", r"is no YAML or JSON \(.*line \d"),
        ("- a", "holds a list, not a sweep"),
        ("seeds: [0]\nseeds: [1]", "sets 'seeds' twice"),
        ("seed: [0]", "'seed' is no key of a sweep: did you mean 'seeds'"),
        ("trainer: true\nnotebook: 04", "exclude each other"),
        ("trainer: 1", "trainer=1 is not accepted"),
        ("notebook: 99_no", "'99_no' is no notebook"),
        ("parallel: 0", "parallel=0 is not accepted"),
        ("limit_s: -1", "limit_s=-1 is not accepted"),
        ("parameters: [steps]", r"parameters=\['steps'\] is not accepted"),
        ("parameters: {steps: [1, 2]}", r"steps=\[1, 2\] is not accepted: expected a number"),
        ("trainer: true\nparameters: {stepz: 1}", "'stepz' is no setting: did you mean 'steps'"),
        ("trainer: true\nparameters: {steps: many}", "steps='many' is not accepted"),
        ("trainer: true\ngrid: {tau: [1, -1]}", "tau=-1 is not accepted"),
        ("parameters: {stepz: 1}", "'stepz' is no parameter of 04_training.ipynb and no setting: did you mean 'steps'"),
        ("parameters: {steps: 1.5}", "steps='1.5' is not accepted: expected a whole number"),
        ("parameters: {buffer: 3}", "buffer=3 is not accepted: expected true or false"),
        ("parameters: {run_dir: x}", "'run_dir' is set by the batch itself"),
        ("parameters: {device: 'cpu,b=c'}", "has commas that 04_training.ipynb takes for further settings"),
        ("grid: {}", "grid={} is not accepted"),
        ("grid: {tau: []}", r"tau=\[\] is not accepted: expected a list of at least one value"),
        ("grid: {tau: [1, 1]}", "tau has 1 twice"),
        ("grid: {tau: [1, '1']}", "tau has '1' twice"),
        ("arms: [{name: a, threads: 1}]\nparameters: {threads: 2}", "'threads' is set by parameters and by arm 'a'"),
        ("parameters: {steps: 0}", "steps=0 is not accepted"),
        ("grid: {tau: [1]}\nparameters: {tau: 2}", "'tau' is set by grid and by parameters"),
        ("arms: [{name: a, tau: 1}]\nparameters: {tau: 2}", "'tau' is set by parameters and by arm 'a'"),
        ("arms: [{name: a, tau: 1}]\ngrid: {tau: [2]}", "'tau' is set by grid and by a"),
        ("arms: []", r"arms=\[\] is not accepted"),
        ("arms: [{tau: 1}]", "has no name"),
        ("arms: [{name: a}, {name: a, tau: 1}]", "two arms have the name 'a'"),
        ("arms: [{name: a}, {name: b}]", "the runs 'a' and 'b' have equal settings"),
        ("trainer: true\narms: [{name: a, tau: 5}, {name: b}]", "the runs 'a' and 'b' have equal settings"),
        ("arms: [{name: a, tau: 5}, {name: b}]", "the runs 'a' and 'b' have equal settings"),
        ("arms: [{name: a, tau: '5'}, {name: b, kl_coef: 0}]", "the runs 'a' and 'b' have equal settings"),
        ("arms: [{name: a, threads: 1}, {name: b}]\nparallel: 2", "the runs 'a' and 'b' have equal settings"),
        ("trainer: true\ngrid: {tau: [1, 1.0]}", "the runs 'tau=1' and 'tau=1.0' have equal settings"),
        ("trainer: true\ngrid: {learning_rate: [1e-3, 0.001]}", "'learning_rate=1e-3' and 'learning_rate=0.001'"),
        ("grid: {learning_rate: [1e-3, 0.001]}", "'learning_rate=1e-3' and 'learning_rate=0.001'"),
        ("limit_s: 2024-13-45", "holds a date or number that does not exist .*month.*: mend it, or put it in quotes"),
        (f"limit_s: {'7' * 5000}", "holds a date or number that does not exist .*5000 digits"),
        (f"limit_s: {'7' * 400}", "is not accepted: expected seconds above 0"),
        ("limit_s: !!bool maybe", "holds a date or number that does not exist"),
        ("[" * 3000, "is nested too deeply: write one `key: value` per line"),
        ("grid: &a {tau: *a}", "is nested too deeply"),
        ("seeds: [0..999999999]", "the sweep has 1000000000 runs: expected at most 10000"),
        ("grid: {tau: [1, 2]}\nseeds: [0..5000]", "the sweep has 10002 runs"),
        ("grid: {1: [1]}", "'1' is no parameter of 04_training.ipynb and no setting"),
        ("trainer: true\ngrid: {on: [1]}", "'True' is no setting"),
        ("parameters: {yes: 1}", "'True' is no parameter"),
        ("on: 1", "'True' is no key of a sweep"),
        ("trainer: true\nparameters: {tasks: nosuch}", "'nosuch' is no task, set or folder"),
        ("parameters: {tasks: nosuch}", "'nosuch' is no task, set or folder"),
        ("parameters: {eval_tasks: core}", "tasks and eval_tasks share delivery-time, .*change eval_tasks"),
        (
            "grid: {tasks: [core, 'synthetic:flag-1']}\nparameters: {eval_tasks: 'churn-lines, synthetic:flag-1'}",
            "tasks and eval_tasks share synthetic-flag-1",
        ),
        ("parameters: {tasks: 'core,synthetic:flags-1'}", "'synthetic:flags-1' is no synthetic task: expected"),
        ("parameters: {policy: ./nowhere}", "'./nowhere' is neither a file, a folder nor a hub id"),
        ("seeds: []", r"seeds=\[\] names no seed"),
        ("seeds: [-1]", "-1 is no seed"),
        ("seeds: [3..1]", r"'3\.\.1' is no seed"),
        ("seeds: [0, 9..1]", r"'9\.\.1' is no seed"),
        ("seeds: [0..3, 2]", "seeds names 2 twice"),
        ("parameters: {seed: 1}", r"parameters sets seed: write `seeds: \[1\]` instead"),
        ("copy_to: [a]", "copy_to="),
    ],
)
def test_what_is_wrong_is_told_in_one_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(WorkbenchError, match=sentence) as told:
        read(tmp_path, text)
    assert "\n" not in str(told.value)
    assert "sweep.yaml" in str(told.value)


def test_what_differs_only_by_how_it_is_taken_is_let_pass(tmp_path: Path) -> None:
    """A preset gives way to what is set, the workers are shared out, and nothing is measured without drafts."""
    assert read(tmp_path, "parameters: {preset: smoke}\narms: [{name: a, tau: 5}, {name: b}]").jobs
    assert read(tmp_path, "trainer: true\nparallel: 2\narms: [{name: a, workers: 2}, {name: b}]").jobs
    assert read(tmp_path, "trainer: true\nparameters: {eval_tasks: core, eval_drafts: 0}").jobs
    assert read(tmp_path, "trainer: true\nlimit_s: .inf\nseeds: [0..9999]").limit_s == math.inf


def test_synthetic_tasks_are_not_made_to_check_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.tasks.generators.make_task", lambda *_: pytest.fail("it was made"))
    assert read(tmp_path, "trainer: true\nparameters: {tasks: 'synthetic:flag-987654, core'}").jobs


def test_a_changed_sweep_is_told(tmp_path: Path) -> None:
    jobs = read(tmp_path, "trainer: true\nseeds: [0..2]").jobs
    assert changes(None, jobs) == ""
    assert changes({job.name: {} for job in jobs}, jobs) == ""
    note = changes({jobs[0].name: {}, "old": {}}, jobs)
    assert "2 runs are new" in note
    assert "1 runs are gone, old the first" in note
