"""The fixed scripts run on every task and on tables of other kinds; the best is chosen on training tasks only."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from workbench.agent.environment import Environment
from workbench.config import Config, make_config
from workbench.learning.baselines import FOLDER, best_fixed_script, own_scripts, read_scripts
from workbench.run import Run
from workbench.sandbox.executor import Executor, Limits, Request
from workbench.tasks.catalog import load_tasks
from workbench.tasks.mle import MleTask
from workbench.tasks.task import position
from workbench.types import Action, Feedback, Group, Kind, Reward, State, StopReason, Turn, Verdict, WorkbenchError

SCRIPTS = read_scripts(FOLDER)
DEFAULTS = Config()
LIMITS = Limits(cpu_s=DEFAULTS.cpu_s, wall_s=60, memory_mb=DEFAULTS.memory_mb)
SAMPLE = "import shutil\nshutil.copy('input/sample_submission.csv', 'submission.csv')\n"


@pytest.fixture(scope="module")
def tasks() -> dict[str, MleTask]:
    return {task.id: task for task in load_tasks("all")}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Public folders of kinds of tables that not all embedded tasks are, by name."""
    root = tmp_path_factory.mktemp("tables")
    rng = np.random.default_rng(0)
    made = {}
    for name, (train, test, sample) in _kinds(rng).items():
        made[name] = root / name / "public"
        made[name].mkdir(parents=True)
        for file, frame in (("train", train), ("test", test), ("sample_submission", sample)):
            frame.to_csv(made[name] / f"{file}.csv", index=False)
    return made


def _kinds(rng: np.random.Generator) -> dict[str, tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]]:
    n = 400
    x = pd.DataFrame(rng.normal(size=(2 * n, 8)), columns=[f"c {i}" for i in range(8)])
    words = np.array(["good", "bad", "fine", "awful", "nice", "rain", "sun", "day"])
    text = [" ".join(rng.choice(words, 6)) for _ in range(2 * n)]
    letters = ["".join(rng.choice(list("abcdefgh"), 7)) for _ in range(2 * n)]
    days = pd.date_range("2020-01-01", periods=2 * n).strftime("%Y-%m-%d")
    positive = (x["c 0"] + rng.normal(size=2 * n) > 1.5).astype(int)
    species = np.array([f"s{i:02d}" for i in range(32)])[rng.integers(0, 32, 2 * n)]
    grade = np.array(["low", "middle", "high"])[np.digitize(x["c 1"], [-0.5, 0.5])]
    empty = x.assign(**{"c 3": np.nan})

    def make(target: object, features: pd.DataFrame, sample: object) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
        whole = features.assign(key=[f"r{i}" for i in range(2 * n)])
        train, test = whole[:n].assign(aim=np.asarray(target)[:n]), whole[n:]
        answer = {"key": test["key"]}
        answer.update(sample if isinstance(sample, dict) else {"aim": sample})
        return train, test, pd.DataFrame(answer)

    wide = dict.fromkeys(sorted(set(species)), 1 / 32)
    return {
        "a probability of a rare class": make(positive, x, 0.06),
        "yes or no as a probability": make(np.where(positive == 1, "yes", "no"), x, 0.5),
        "32 classes": make(species, x, wide),
        "three labels": make(grade, x, "low"),
        "text": make(x["c 0"], x[["c 1"]].assign(note=text), 0.5),
        "letters": make(positive, pd.DataFrame({"name": letters}), 0.5),
        "dates": make(np.sin(np.arange(2 * n) / 50), x.assign(day=days), 0.1),
        "grades of numbers": make(rng.integers(0, 7, 2 * n), x, 3),
        "counts": make(rng.poisson(3, 2 * n), x, 2.5),
        "an empty column": make(x["c 0"], empty, 0.0),
        "no column of its own": make(x["c 0"], pd.DataFrame(index=range(2 * n)), 0.0),
    }


@pytest.fixture(scope="module")
def executor(tasks: dict[str, MleTask], tables: dict[str, Path]) -> Iterator[Executor]:
    roots = [*(task.public_dir for task in tasks.values()), *tables.values()]
    with Executor(data_roots=roots, workers=2) as started:
        yield started


@pytest.fixture
def environment(tasks: dict[str, MleTask], executor: Executor) -> Iterator[Environment]:
    with Environment(tasks, executor, LIMITS) as made:
        yield made


def pairs(names: list[str], every: bool) -> list[tuple[str, str]]:
    """(script, table): all, or for each table two of the scripts in turn."""
    if every:
        return [(script, name) for name in names for script in SCRIPTS]
    scripts = list(SCRIPTS)
    return [(scripts[(n + shift) % len(scripts)], name) for n, name in enumerate(names) for shift in (0, 3)]


def act(code: str) -> Action:
    return Action(f"```python\n{code}\n```", (), (), 0, StopReason.EOS)


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_scripts_are_valid_on_every_embedded_task_and_better_than_a_constant(
    every: bool, tasks: dict[str, MleTask], environment: Environment
) -> None:
    assert 6 <= len(SCRIPTS) <= 10
    waiting = {(n, t): environment.submit(t, act(SCRIPTS[n])) for n, t in pairs(list(tasks), every)}
    feedbacks = {key: wait().feedback for key, wait in waiting.items()}
    slow = {key for key, f in feedbacks.items() if "time limit" in (f.reason or "")}  # trees on hundreds of words
    assert {key: f.reason for key, f in feedbacks.items() if not f.valid and key not in slow} == {}
    assert {task_id for _, task_id in slow} <= {"tweet-valence", "leaf-shape"}
    for task_id, task in tasks.items():
        scores = [feedback.score for (_, t), feedback in feedbacks.items() if t == task_id]
        assert max(position(task, score, "reward") for score in scores if score is not None) > 0.05, task_id


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_scripts_are_valid_on_tables_of_other_kinds(every: bool, tables: dict[str, Path], executor: Executor) -> None:
    waiting = {
        (name, kind): executor.submit(Request(SCRIPTS[name], tables[kind], limits=LIMITS))
        for name, kind in pairs(list(tables), every)
    }
    for (name, kind), future in waiting.items():
        result = future.result()
        assert result.verdict is Verdict.OK, (name, kind, result.stderr[-300:])
        made = pd.read_csv(io.BytesIO(result.submission or b""))
        sample, train = (pd.read_csv(tables[kind] / f"{file}.csv") for file in ("sample_submission", "train"))
        assert list(made.columns) == list(sample.columns), (name, kind)
        assert list(made["key"]) == list(sample["key"])
        asked = made.columns[1:]
        assert made[asked].notna().all(axis=None), (name, kind)
        if kind == "32 classes":
            assert made[asked].sum(axis=1).between(0.9999, 1.0001).all()
        elif kind in ("three labels", "grades of numbers"):
            assert set(made["aim"]) <= set(train["aim"]), (name, kind)
        elif "probability" in kind or kind == "letters":
            assert made["aim"].between(0, 1).all(), (name, kind)
            assert made["aim"].nunique() > 5, (name, kind)
        elif kind == "counts":
            assert (made["aim"] >= 0).all(), (name, kind)


def test_the_script_of_the_best_mean_over_training_tasks_is_run_once_on_the_others(
    tasks: dict[str, MleTask], environment: Environment
) -> None:
    scripts = {"c": SCRIPTS["linear_log"], "sample": SAMPLE, "b": SCRIPTS["linear_log"], "wrong": "raise ValueError\n"}
    train, held_out = [tasks["diamonds"], tasks["job-time"]], [tasks["used-cars"]]
    found = best_fixed_script(scripts, environment, train, held_out)
    assert found.name == "b", "of equal ones the first by name"
    by_name = {row["name"]: row for row in found.candidates}
    assert [row["name"] for row in found.candidates][:2] == ["b", "c"]
    assert (by_name["wrong"]["position"], by_name["wrong"]["valid_rate"]) == (0.0, 0.0)
    assert by_name["sample"]["valid_rate"] == 1.0
    waits = [environment.submit(task.id, act(SCRIPTS["linear_log"])) for task in train]
    places = [position(task, wait().feedback.score or 0.0, "reward") for task, wait in zip(train, waits, strict=True)]
    assert by_name["b"]["position"] == pytest.approx(sum(places) / 2)
    row = found.tasks[0]
    assert row["id"] == "used-cars"
    assert (
        row["position"] == found.values["position"][0] == position(tasks["used-cars"], row["report"]["score"], "final")
    )
    assert found.as_dict()["valid_rate"] == 1.0
    again = best_fixed_script(scripts, environment, train, held_out)
    drop = {"created_at": ""}
    assert (again.name, again.candidates) == (found.name, found.candidates)
    assert {**again.tasks[0]["report"], **drop} == {**row["report"], **drop}


def test_a_measured_task_cannot_choose(tasks: dict[str, MleTask], environment: Environment) -> None:
    both = [tasks["diamonds"]]
    with pytest.raises(WorkbenchError, match="'diamonds' is measured and cannot choose the fixed script too"):
        best_fixed_script({"sample": SAMPLE}, environment, both, both)


def test_a_folder_without_scripts_is_told(tmp_path: Path) -> None:
    (tmp_path / "_common.py").write_text("x = 1\n")
    with pytest.raises(WorkbenchError, match="holds no script"):
        read_scripts(tmp_path)
    (tmp_path / "a.py").write_text("print(x)\n")
    assert read_scripts(tmp_path) == {"a": "x = 1\nprint(x)\n"}


def test_of_a_training_the_best_valid_script_of_each_template_is_a_candidate(
    tasks: dict[str, MleTask], tmp_path: Path
) -> None:
    state = State("diamonds", Kind.DRAFT)

    def turn(code: str | None, reward: float | None, score: float | None = 1.0) -> Turn:
        feedback = Feedback(Verdict.OK, code, score=score)
        total = None if reward is None else Reward(reward)
        return Turn(state, Action("", (5,), (-1.0,), 0, StopReason.EOS), feedback, total, "g", "t")

    turns = (
        turn("fit('price', 1)\n", 0.5),
        turn("fit('weight_mg', 2)\n", 0.7),
        turn("forest('price')\n", 0.6),
        turn("lost('price')\n", None),
        turn("wrong('price')\n", 0.9, score=None),
        turn(None, 0.0, score=None),
    )
    with Run.create(tmp_path / "run", make_config(), {}) as run:
        run.commit(1, groups=[Group("g", state, (1,), tuple(replace(t) for t in turns))])
        assert list(own_scripts(run, tasks).values()) == ["fit('weight_mg', 2)\n", "forest('price')\n"]
        assert len(own_scripts(run, tasks, limit=1)) == 1
