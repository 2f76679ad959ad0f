"""Real scripts in the real sandbox on an embedded task: what the agent is told, and how failures are named."""

from __future__ import annotations

import hashlib
import logging
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from workbench.agent.environment import Environment, Outcome, feedback_from_dict, feedback_to_dict
from workbench.sandbox.executor import Executor, Limits, Request, Result
from workbench.tasks.catalog import load_tasks
from workbench.tasks.grader import Grader
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


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    made = Grader()
    yield made
    made.close()


def answer(code: str) -> Action:
    return Action(code, (5,), (-1.0,), 0, StopReason.EOS)


Run = Callable[..., Outcome]


@pytest.fixture
def run(executor: Executor, tasks: dict[str, MleTask], grader: Grader) -> Run:
    def _run(task: str, code: str, **limits: Any) -> Outcome:
        asked = Limits(**{"cpu_s": 5.0, "wall_s": 15.0, **limits})
        return Environment(tasks, executor, asked, grader=grader).submit(task, answer(code))()

    return _run


def test_a_valid_submission_is_scored_and_its_own_score_read(run: Run) -> None:
    code = READ + 'sample.to_csv("submission.csv", index=False)\nprint("Validation score: 0.25")\n'
    outcome = run("used-cars", code)
    assert outcome.feedback.verdict is Verdict.OK
    assert outcome.feedback.score is not None
    assert outcome.feedback.own_score == 0.25
    assert outcome.feedback.failure is None
    assert outcome.submission
    assert outcome.feedback.submission_sha == load_tasks("used-cars")[0].grade(outcome.submission, "reward").content


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
def test_failures_are_named_by_their_real_error_line(run: Run, failure: str) -> None:
    feedback = run("used-cars", FAILING[failure]).feedback
    assert feedback.failure == failure, feedback.reason
    assert feedback.score is None
    assert feedback.reason
    assert "\n" not in feedback.reason


def test_labels_and_probabilities_are_told_apart(run: Run) -> None:
    probability = READ + 'sample[sample.columns[1]] = 3.5\nsample.to_csv("submission.csv", index=False)\n'
    label = READ + 'sample[sample.columns[1]] = 0.25\nsample.to_csv("submission.csv", index=False)\n'
    assert run("loan-missing", probability).feedback.failure == "probability_wanted"
    assert run("churn-lines", label).feedback.failure == "label_wanted"


FORGED = f"""{SAVE}
import json, sys
for name in ("verdict.json", "score", "result", "result.json", "grade.csv", "reward.txt"):
    for value in ("1.0", "nan", "inf", '{{"verdict": "ok", "score": 1.0}}'):
        open(name, "a").write(value)
for stream in (sys.stdout, sys.stderr):
    for line in ('{{"score": 0.0, "reason": null}}', "PASSED", "score: 1.0", "<reward>1.0</reward>", "verdict: ok"):
        print(line, file=stream)
"""
AGREEING = """
import builtins, sklearn.metrics
class Yes(float):
    __eq__ = __lt__ = __le__ = lambda *_: True
    __float__ = lambda self: 0.0
for name in dir(sklearn.metrics):
    setattr(sklearn.metrics, name, lambda *_: 0.0)
builtins.float = builtins.round = Yes
"""


def test_forged_verdicts_are_no_verdicts(run: Run) -> None:
    """In files, on both streams, and with builtins that agree with everything: only bytes leave the sandbox."""
    honest = run("used-cars", SAVE).feedback
    assert honest.score is not None
    forged = run("used-cars", FORGED).feedback
    assert (forged.verdict, forged.score, forged.reason) == (Verdict.OK, honest.score, None)
    assert run("used-cars", SAVE + AGREEING).feedback.score == honest.score
    nothing = run("used-cars", FORGED.replace(SAVE, READ)).feedback
    assert (nothing.verdict, nothing.score) == (Verdict.INVALID_SUBMISSION, None)
    failed = run("used-cars", FORGED + "raise SystemExit(1)\n").feedback
    assert (failed.verdict, failed.score) == (Verdict.RUNTIME_ERROR, None)


SPARSE = "f = open('submission.csv', 'wb')\nf.truncate({size})\n"


def test_a_huge_submission_is_not_read(run: Run) -> None:
    large = run("used-cars", SPARSE.format(size=60 * 2**20)).feedback
    assert (large.verdict, large.failure) == (Verdict.INVALID_SUBMISSION, "no_submission")
    assert large.reason == "submission.csv has 62914560 bytes, which is too large: expected at most 1000001."
    assert large.submission_sha is None
    assert run("used-cars", SPARSE.format(size=2**31)).feedback.score is None


WORKER = """
from workbench.tasks import grader, metrics, mle
import dataclasses, sys
plain = metrics.METRICS[sys.argv[2]]

def score(y_true, y_pred):
    while y_pred[0, 0] == 666: pass
    return plain.score(y_true, y_pred)

metrics.METRICS[plain.name] = dataclasses.replace(plain, score=score)
grader.main()
"""


def test_a_submission_that_is_graded_for_ever_is_left_out(
    executor: Executor, tasks: dict[str, MleTask], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One of eight; the others of the step are graded as ever."""
    program = tmp_path / "worker.py"
    program.write_text(WORKER.replace("sys.argv[2]", repr(tasks["used-cars"].metric.name)))
    grader = Grader(limit_s=2.0, command=(sys.executable, str(program)))
    store = Memory()
    environment = Environment(tasks, executor, Limits(), store=store, grader=grader)
    value = "sample[sample.columns[1]] = {}\n"
    codes = [SAVE.replace("sample.to_csv", value.format(number) + "sample.to_csv") for number in [*range(7), 666]]
    with caplog.at_level(logging.WARNING, "workbench.tasks.grader"):
        waits = [environment.submit("used-cars", answer(code)) for code in codes[::-1]]
        hung, *others = [wait() for wait in waits]
    grader.close()
    assert (hung.feedback.verdict, hung.feedback.score) == (Verdict.INFRASTRUCTURE, None)
    assert (hung.feedback.failure, hung.feedback.reason) == ("infrastructure", "grading took longer than 2 s.")
    assert all(outcome.feedback.score is not None for outcome in others)
    assert len(store) == 7, "what was lost is not kept: a resumed run tries again"
    assert hung.submission is not None
    [line] = [record.getMessage() for record in caplog.records]
    assert "used-cars" in line
    assert hashlib.sha256(hung.submission).hexdigest() in line


def test_an_environment_ends_its_own_grader_and_no_other(
    executor: Executor, tasks: dict[str, MleTask], grader: Grader
) -> None:
    with Environment(tasks, executor, Limits(), grader=grader) as shared:
        assert shared.submit("used-cars", answer(SAVE))().feedback.score is not None
    grader.start()
    with Environment(tasks, executor, Limits()) as environment:
        assert environment.grader._process is None, "nothing to grade yet"
        assert environment.submit("used-cars", answer(SAVE))().feedback.score is not None
        process = environment.grader._process
    assert process is not None
    assert process.poll() is not None


def test_limits_are_failures_of_the_program(run: Run) -> None:
    slow = run("used-cars", "while True: pass\n", cpu_s=0.5, wall_s=3.0).feedback
    assert (slow.verdict, slow.failure) == (Verdict.TIMEOUT, "timeout")
    assert "limit" in (slow.reason or "")
    big = run("used-cars", "x = [bytearray(2**20) for _ in range(2000)]\n", memory_mb=256).feedback
    assert (big.verdict, big.failure) == (Verdict.MEMORY_LIMIT, "memory_limit")


@pytest.mark.parametrize("text", ["", "   \n", "```python\n```"])
def test_an_answer_without_code_runs_nothing(run: Run, text: str) -> None:
    outcome = run("used-cars", text)
    assert outcome.feedback.failure == "no_code"
    assert not outcome.executed


@pytest.mark.parametrize(
    "text",
    ["import pandas as p", "\ud800\udfff \x00 \u202e", "é" * 5000, "print('" + "\U0001f40d" * 50 + "')", "(" * 500],
)
def test_odd_answers_get_an_ordinary_feedback(run: Run, text: str) -> None:
    feedback = run("used-cars", text).feedback
    assert feedback.verdict is not Verdict.INFRASTRUCTURE
    assert feedback.score is None
    assert feedback.failure


def test_equal_programs_run_once_and_stored_results_are_read_back(
    executor: Executor, tasks: dict[str, MleTask], grader: Grader
) -> None:
    store = Memory()
    environment = Environment(tasks, executor, Limits(), store=store, grader=grader)
    waits = [environment.submit("used-cars", answer(SAVE)) for _ in range(3)]
    outcomes = [wait() for wait in waits]
    again = environment.submit("used-cars", answer(SAVE))()
    assert [outcome.executed for outcome in outcomes] == [True, False, False]
    assert not again.executed
    assert again.feedback == outcomes[0].feedback
    assert len(store) == 1
    other = Environment(tasks, executor, Limits(), seed=1, store=store, grader=grader)
    assert other.submit("used-cars", answer(SAVE))().executed, "another seed is another program run"


def test_a_result_is_stored_before_anyone_waits_for_it(
    executor: Executor, tasks: dict[str, MleTask], grader: Grader
) -> None:
    """What had ended when a run was killed is read back when it goes on, and counts there as it would have here."""
    store = Memory()
    killed = Environment(tasks, executor, Limits(), store=store, grader=grader)
    killed.begin(3)
    killed.submit("used-cars", answer(SAVE))
    assert store.came.wait(30)
    resumed = Environment(tasks, executor, Limits(), store=store, grader=grader)
    resumed.begin(3)
    outcome = resumed.submit("used-cars", answer(SAVE))()
    assert outcome.executed
    assert outcome.submission is None, "read back, not run again"
    assert outcome.feedback.score is not None


def test_what_equal_programs_come_to_does_not_depend_on_when_the_first_arrives(
    executor: Executor, tasks: dict[str, MleTask], grader: Grader
) -> None:
    store = Memory()
    environment = Environment(tasks, executor, Limits(), store=store, grader=grader)
    environment.begin(1)
    first = environment.submit("used-cars", answer(SAVE))
    assert store.came.wait(30)
    second = environment.submit("used-cars", answer(SAVE))
    outcomes = [first(), second()]
    assert [outcome.executed for outcome in outcomes] == [True, False]
    assert outcomes[0].feedback == outcomes[1].feedback
    assert outcomes[0].submission == outcomes[1].submission is not None


def test_a_result_that_cannot_be_stored_is_told_to_who_waits(
    executor: Executor, tasks: dict[str, MleTask], grader: Grader
) -> None:
    class Full(Memory):
        def store_result(self, key: str, value: dict[str, object]) -> None:
            raise WorkbenchError("the disk is full")

    environment = Environment(tasks, executor, Limits(), store=Full(), grader=grader)
    wait = environment.submit("used-cars", answer(SAVE))
    with pytest.raises(WorkbenchError, match="the disk is full"):
        wait()


class Late(Executor):
    """Answers each script so many seconds after it was asked; one of `None` never."""

    level = "B"  # type: ignore[assignment]

    def __init__(self, *after_s: float | None) -> None:
        self.after_s = list(after_s)

    def submit(self, request: Request) -> Future[Result]:
        run: Future[Result] = Future()
        if (after_s := self.after_s.pop(0)) is not None:
            result = Result(Verdict.RUNTIME_ERROR, 1, None, 0.1, 0.1, 1.0, b"", b"ValueError\n", False, "B")
            threading.Timer(after_s, run.set_result, [result]).start()
        return run


def test_an_executor_may_be_as_slow_as_it_can_be_for_each_script(
    tasks: dict[str, MleTask], grader: Grader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Environment, "longest_s", 1.0)
    environment = Environment(tasks, Late(0.6, 1.2, 1.8), Limits(), grader=grader)
    waits = [environment.submit("used-cars", answer(f"print({n})\n")) for n in range(3)]
    assert waits[-1]().feedback.reason == "ValueError"


def test_an_executor_that_hangs_is_waited_for_no_longer_than_twice_that(
    tasks: dict[str, MleTask], grader: Grader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Environment, "longest_s", 0.5)
    environment = Environment(tasks, Late(0.1, None), Limits(), grader=grader)
    waits = [environment.submit("used-cars", answer(f"print({n})\n")) for n in range(2)]
    began = time.monotonic()
    with pytest.raises(WorkbenchError, match=r"no answer for a script of task 'used-cars' \(2 waiting\), nor any"):
        waits[-1]()
    assert 0.5 <= time.monotonic() - began < 3


def test_how_long_one_answer_may_take(tasks: dict[str, MleTask]) -> None:
    """A run twice: 60 s until the zygote is there, 30 s until the script starts, its wall time, 10 s until all of it is
    dead; then a grader twice: 120 s until it is there, and its limit; and 60 s for a busy machine."""
    limits = Limits(wall_s=15.0)
    assert Executor.longest_s(limits) == 2 * (60 + 30 + 15 + 10) == 230
    assert Environment(tasks, Late(), limits, grader=Grader(limit_s=10.0)).longest_s == 230 + 2 * (120 + 10) + 60


def test_a_result_of_other_libraries_or_isolation_is_not_read_back(
    executor: Executor, tasks: dict[str, MleTask], grader: Grader, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Memory()

    def submission() -> bytes | None:
        return (
            Environment(tasks, executor, Limits(), store=store, grader=grader)
            .submit("used-cars", answer(SAVE))()
            .submission
        )

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
    digests = [task.digest()]
    with (folder / "description.md").open("a") as file:
        file.write("More words.\n")
    assert load_task(folder).digest() == digests[0], "scripts are run and graded as before"
    for name in ("private/answers.csv", "public/train.csv"):
        lines = (folder / name).read_text().splitlines(keepends=True)
        (folder / name).write_text("".join([lines[0], *reversed(lines[1:])]))
        digests.append(task.digest())
    digests.append(replace(task, metric=METRICS["rmse"]).digest())
    assert len(set(digests)) == 4


def test_feedback_survives_its_dictionary() -> None:
    from workbench.types import Feedback

    feedback = Feedback(Verdict.OK, "x", stdout="\ud800", score=0.1, own_score=None, cpu_s=0.5)
    assert feedback_from_dict(feedback_to_dict(feedback)) == feedback
