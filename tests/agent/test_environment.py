"""Real scripts in the real sandbox on an embedded task: what the agent is told, and how failures are named."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from workbench.agent.environment import Environment, Outcome, feedback_from_dict, feedback_to_dict, task_digest
from workbench.sandbox.executor import Executor, Limits
from workbench.tasks.catalog import load_tasks
from workbench.tasks.metrics import METRICS
from workbench.tasks.mle import MleTask, load_task
from workbench.types import Action, StopReason, Verdict, WorkbenchError

READ = """import pandas as pd
train = pd.read_csv("input/train.csv")
test = pd.read_csv("input/test.csv")
sample = pd.read_csv("input/sample_submission.csv")
"""


SAVE = READ + 'sample.to_csv("submission.csv", index=False)\n'


class Memory(dict[str, Any]):
    """A store that keeps results in memory, and says when one has come."""

    def __init__(self) -> None:
        super().__init__()
        self.came = threading.Event()

    def result(self, key: str) -> Any:
        return self.get(key)

    def store_result(self, key: str, value: dict[str, object]) -> None:
        self[key] = value
        self.came.set()


@pytest.fixture(scope="module")
def tasks() -> dict[str, MleTask]:
    return {task.id: task for task in load_tasks("all")}


@pytest.fixture(scope="module")
def executor(tasks: dict[str, MleTask]) -> Iterator[Executor]:
    with Executor(data_roots=[task.public_dir for task in tasks.values()], workers=2) as started:
        yield started


def answer(code: str) -> Action:
    return Action(code, (5,), (-1.0,), 0, StopReason.EOS)


def run(executor: Executor, tasks: dict[str, MleTask], task: str, code: str, **limits: Any) -> Outcome:
    environment = Environment(tasks, executor, Limits(**{"cpu_s": 5.0, "wall_s": 15.0, **limits}))
    return environment.submit(task, answer(code))()


def test_a_valid_submission_is_scored_and_its_own_score_read(executor: Executor, tasks: dict[str, MleTask]) -> None:
    code = READ + 'sample.to_csv("submission.csv", index=False)\nprint("Validation score: 0.25")\n'
    outcome = run(executor, tasks, "used-cars", code)
    assert outcome.feedback.verdict is Verdict.OK
    assert outcome.feedback.score is not None
    assert outcome.feedback.own_score == 0.25
    assert outcome.feedback.failure is None
    assert outcome.submission


FAILING = {
    "syntax": "def broken(:\n    pass\n",
    "undefined_name": READ + "np.zeros(3)\n",
    "wrong_column": READ + 'train["no such column"]\n',
    "missing_values": READ
    + "from sklearn.linear_model import LinearRegression\nimport numpy as np\n"
    + "LinearRegression().fit([[np.nan], [1.0]], [1.0, 2.0])\n",
    "text_columns": READ
    + "from sklearn.linear_model import LinearRegression\n"
    + 'LinearRegression().fit(pd.DataFrame({"a": ["x", "y"]}), [1.0, 2.0])\n',
    "feature_mismatch": READ
    + "from sklearn.linear_model import LinearRegression\n"
    + 'model = LinearRegression().fit(pd.DataFrame({"a": [1.0, 2.0]}), [1.0, 2.0])\n'
    + 'model.predict(pd.DataFrame({"b": [1.0]}))\n',
    "wrong_target_type": READ
    + "from sklearn.linear_model import LogisticRegression\n"
    + "LogisticRegression().fit([[0.0], [1.0], [2.0]], [0.5, 1.5, 2.5])\n",
    "other_error": READ + "raise ValueError('something else')\n",
    "no_submission": READ,
    "wrong_ids": READ + 'sample.iloc[:-3].to_csv("submission.csv", index=False)\n',
    "wrong_columns": READ + 'test.iloc[:, :1].to_csv("submission.csv", index=False)\n',
    "bad_values": READ + 'sample[sample.columns[1]] = float("nan")\nsample.to_csv("submission.csv", index=False)\n',
}


@pytest.mark.parametrize("failure", FAILING)
def test_failures_are_named_by_their_real_error_line(
    executor: Executor, tasks: dict[str, MleTask], failure: str
) -> None:
    feedback = run(executor, tasks, "used-cars", FAILING[failure]).feedback
    assert feedback.failure == failure, feedback.reason
    assert feedback.score is None
    assert feedback.reason
    assert "\n" not in feedback.reason


def test_labels_and_probabilities_are_told_apart(executor: Executor, tasks: dict[str, MleTask]) -> None:
    probability = READ + 'sample[sample.columns[1]] = 3.5\nsample.to_csv("submission.csv", index=False)\n'
    label = READ + 'sample[sample.columns[1]] = 0.25\nsample.to_csv("submission.csv", index=False)\n'
    assert run(executor, tasks, "loan-missing", probability).feedback.failure == "probability_wanted"
    assert run(executor, tasks, "churn-lines", label).feedback.failure == "label_wanted"


def test_limits_are_failures_of_the_program(executor: Executor, tasks: dict[str, MleTask]) -> None:
    slow = run(executor, tasks, "used-cars", "while True: pass\n", cpu_s=0.5, wall_s=3.0).feedback
    assert (slow.verdict, slow.failure) == (Verdict.TIMEOUT, "timeout")
    assert "limit" in (slow.reason or "")
    big = run(executor, tasks, "used-cars", "x = [bytearray(2**20) for _ in range(2000)]\n", memory_mb=256).feedback
    assert (big.verdict, big.failure) == (Verdict.MEMORY_LIMIT, "memory_limit")


@pytest.mark.parametrize("text", ["", "   \n", "```python\n```"])
def test_an_answer_without_code_runs_nothing(executor: Executor, tasks: dict[str, MleTask], text: str) -> None:
    outcome = run(executor, tasks, "used-cars", text)
    assert outcome.feedback.failure == "no_code"
    assert not outcome.executed


@pytest.mark.parametrize(
    "text",
    ["import pandas as p", "\ud800\udfff \x00 \u202e", "é" * 5000, "print('" + "\U0001f40d" * 50 + "')", "(" * 500],
)
def test_odd_answers_get_an_ordinary_feedback(executor: Executor, tasks: dict[str, MleTask], text: str) -> None:
    feedback = run(executor, tasks, "used-cars", text).feedback
    assert feedback.verdict is not Verdict.INFRASTRUCTURE
    assert feedback.score is None
    assert feedback.failure


def test_equal_programs_run_once_and_stored_results_are_read_back(
    executor: Executor, tasks: dict[str, MleTask]
) -> None:
    store = Memory()
    environment = Environment(tasks, executor, Limits(), store=store)
    waits = [environment.submit("used-cars", answer(SAVE)) for _ in range(3)]
    outcomes = [wait() for wait in waits]
    again = environment.submit("used-cars", answer(SAVE))()
    assert [outcome.executed for outcome in outcomes] == [True, False, False]
    assert not again.executed
    assert again.feedback == outcomes[0].feedback
    assert len(store) == 1
    other = Environment(tasks, executor, Limits(), seed=1, store=store)
    assert other.submit("used-cars", answer(SAVE))().executed, "another seed is another program run"


def test_a_result_is_stored_before_anyone_waits_for_it(executor: Executor, tasks: dict[str, MleTask]) -> None:
    """What had ended when a run was killed is read back when it goes on, and counts there as it would have here."""
    store = Memory()
    killed = Environment(tasks, executor, Limits(), store=store)
    killed.begin(3)
    killed.submit("used-cars", answer(SAVE))
    assert store.came.wait(30)
    resumed = Environment(tasks, executor, Limits(), store=store)
    resumed.begin(3)
    outcome = resumed.submit("used-cars", answer(SAVE))()
    assert outcome.executed
    assert outcome.submission is None, "read back, not run again"
    assert outcome.feedback.score is not None


def test_what_equal_programs_come_to_does_not_depend_on_when_the_first_arrives(
    executor: Executor, tasks: dict[str, MleTask]
) -> None:
    store = Memory()
    environment = Environment(tasks, executor, Limits(), store=store)
    environment.begin(1)
    first = environment.submit("used-cars", answer(SAVE))
    assert store.came.wait(30)
    second = environment.submit("used-cars", answer(SAVE))
    outcomes = [first(), second()]
    assert [outcome.executed for outcome in outcomes] == [True, False]
    assert outcomes[0].feedback == outcomes[1].feedback
    assert outcomes[0].submission == outcomes[1].submission is not None


def test_a_result_that_cannot_be_stored_is_told_to_who_waits(executor: Executor, tasks: dict[str, MleTask]) -> None:
    class Full(Memory):
        def store_result(self, key: str, value: dict[str, object]) -> None:
            raise WorkbenchError("the disk is full")

    environment = Environment(tasks, executor, Limits(), store=Full())
    wait = environment.submit("used-cars", answer(SAVE))
    with pytest.raises(WorkbenchError, match="the disk is full"):
        wait()


def test_a_result_of_other_libraries_or_isolation_is_not_read_back(
    executor: Executor, tasks: dict[str, MleTask], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Memory()

    def submission() -> bytes | None:
        return Environment(tasks, executor, Limits(), store=store).submit("used-cars", answer(SAVE))().submission

    version = metadata.version
    assert submission() is not None
    assert submission() is None, "read back"
    monkeypatch.setattr(metadata, "version", lambda name: "0.1" if name == "scikit-learn" else version(name))
    assert submission() is not None
    assert submission() is None
    monkeypatch.setattr(Executor, "level", "Z")
    assert submission() is not None
    assert len(store) == 3


def test_a_task_that_was_mended_is_another_task(tmp_path: Path) -> None:
    folder = tmp_path / "used-cars"
    shutil.copytree(load_tasks("used-cars")[0].folder, folder)
    task = load_task(folder)
    digests = [task_digest(task)]
    with (folder / "description.md").open("a") as file:
        file.write("More words.\n")
    assert task_digest(load_task(folder)) == digests[0], "scripts are run and graded as before"
    for name in ("private/answers.csv", "public/train.csv"):
        lines = (folder / name).read_text().splitlines(keepends=True)
        (folder / name).write_text("".join([lines[0], *reversed(lines[1:])]))
        digests.append(task_digest(task))
    digests.append(task_digest(replace(task, metric=METRICS["rmse"])))
    assert len(set(digests)) == 4


def test_feedback_survives_its_dictionary() -> None:
    from workbench.types import Feedback

    feedback = Feedback(Verdict.OK, "x", stdout="\ud800", score=0.1, own_score=None, cpu_s=0.5)
    assert feedback_from_dict(feedback_to_dict(feedback)) == feedback
