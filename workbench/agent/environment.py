"""The world an action meets: find the script in the text, run it in the sandbox, grade what it wrote.

`Environment.submit` starts an execution at once and returns a function that waits for its `Outcome`, so that the
sandbox works while the policy is still generating. A result is graded and stored when it arrives, under (task, code,
limits, seed, environment), and read back, so a resumed run sees what the first one saw and equal programs are executed
once. The environment is what else decides how a script ends: the task's files and metric, the versions of the libraries
that scripts import, the isolation level.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from importlib import metadata
from types import TracebackType
from typing import Any, Protocol, Self

from workbench.agent.completions import parse_code, parse_own_score
from workbench.agent.prompts import trim
from workbench.sandbox.executor import Executor, Limits, Request, Result
from workbench.sandbox.mounts import LIBRARIES
from workbench.tasks.grader import BOOT_S, Grader, GradingLost
from workbench.tasks.task import Task
from workbench.types import Action, Feedback, Verdict, WorkbenchError

KEPT_OUTPUT = 4000
"""Characters of each stream that a feedback keeps (head and tail)."""

SLACK_S = 60.0
"""How much longer than its parts an execution may take, on a busy machine, before it counts as stuck."""

FAILURES: dict[str, str] = {
    "no_code": r"^no code",
    "timeout": r"^stopped at its time limit",
    "memory_limit": r"^(?:[\w.]*\.)?_?(?:Array)?MemoryError\b",
    "syntax": r"^(?:SyntaxError|IndentationError|TabError)\b",
    "undefined_name": r"^(?:NameError|ModuleNotFoundError|ImportError|UnboundLocalError)\b",
    "missing_values": r"contains NaN|missing values|Cannot convert non-finite|Input contains infinity",
    "text_columns": r"could not convert string|unsupported operand type.*str|agg function failed",
    "feature_mismatch": r"feature names|features as input|expecting \d+ features|unseen at fit|unknown categories",
    "wrong_target_type": r"Unknown label type|can't handle|continuous|predict_proba|y_true|y_prob|pos_label",
    "wrong_column": r"^KeyError|not in index|not found in axis|has no attribute|Usecols",
    "other_error": r"^[A-Za-z_.]*(?:Error|Exception|Interrupt|Exit|Warning)\b",
}
"""Failure kinds of programs that did not end well, recognised by the last error line, first match wins."""

INVALID: dict[str, str] = {
    "no_submission": r"no submission\.csv|^submission\.csv |file is empty",
    "wrong_ids": r"^id |ids of test\.csv|rows of test\.csv",
    "wrong_columns": r"^column .* (?:is missing:|appears \d+ times)|^the file has \d+ columns",
    "probability_wanted": r"probabilit",
    "label_wanted": r"a label is wanted",
    "bad_values": r"missing value|finite|negative|too large|a number is wanted",
}
"""Failure kinds of submissions that a grader refused, recognised by its reason, first match wins."""


class Store(Protocol):
    """Where results of executions are kept; a `Run` is one."""

    def result(self, key: str) -> Mapping[str, Any] | None: ...

    def store_result(self, key: str, result: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """A feedback and the submission's bytes (None when there was none, or when the result was read from the store)."""

    feedback: Feedback
    submission: bytes | None
    executed: bool
    """Whether this counts as an execution: a distinct program, run for the first time, in this step or (read back by a
    resumed run) in its interrupted first try."""


Judged = tuple[Feedback, bytes | None]
"""What an execution came to, and the submission's bytes."""


class Environment:
    """Runs and grades the scripts of ML-engineering tasks. Thread-safe.

    `grader`: one that is shared, and whose owner closes it; without one the environment has its own, started with the
    first script and closed by `close`.
    """

    def __init__(
        self,
        tasks: Mapping[str, Task],
        executor: Executor,
        limits: Limits,
        *,
        seed: int = 0,
        store: Store | None = None,
        grader: Grader | None = None,
    ) -> None:
        self.tasks = dict(tasks)
        self.executor = executor
        self.limits = limits
        self.seed = seed
        self.store = store
        self.grader = grader or Grader()
        self._owns_grader = grader is None
        self._step: int | None = None
        self._counted: set[str] = set()
        self._running: dict[str, Future[Judged]] = {}
        """By key: executions that nobody has waited for yet."""
        self._answered = 0.0
        """When the last execution came to something, by the monotonic clock."""
        self._lock = threading.Lock()

    def close(self) -> None:
        """End the grader, where it is the environment's own. Idempotent."""
        if self._owns_grader:
            self.grader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def begin(self, step: int) -> None:
        """From now on results are those of this training step; counting starts anew."""
        self._step = step
        self._counted.clear()

    def submit(self, task_id: str, action: Action) -> Callable[[], Outcome]:
        """Start running the action's script; the function returned waits for the outcome.

        Raises (when waited for): WorkbenchError if the executor does not answer within its own limits, and whatever
        grading or storing the result raised.
        """
        code = parse_code(action.text)
        if code is None:
            feedback = Feedback(Verdict.RUNTIME_ERROR, None, failure="no_code", reason="no code in the answer")
            return lambda: Outcome(feedback, None, executed=False)
        task = self.tasks[task_id]
        key = self._key(task, code)
        with self._lock:
            judged = self._running.get(key)
            if judged is not None:  # asked first, so that it does not matter whether its result is there already
                return lambda: self._wait(key, task_id, judged, executed=False)
            stored = self.store.result(key) if self.store is not None else None
            if stored is not None:
                feedback, counts = feedback_from_dict(stored["feedback"]), self._counts(key, stored["step"])
                return lambda: Outcome(feedback, None, counts)
            started = self._running[key] = self._start(key, task, code)
            first = self._counts(key, self._step)
        return lambda: self._wait(key, task_id, started, first)

    def known(self, task_id: str, code: str) -> Feedback | None:
        """What a script of this task came to when it was run, from the store; None without that. Runs nothing."""
        stored = self.store.result(self._key(self.tasks[task_id], code)) if self.store is not None else None
        return None if stored is None else feedback_from_dict(stored["feedback"])

    def _counts(self, key: str, step: int | None) -> bool:
        """Whether a program first run in `step` is a new execution of the present one. That a resumed run reads back
        what it had run before it was interrupted makes no difference to its figures."""
        if key in self._counted or step != self._step:
            return False
        self._counted.add(key)
        return True

    def circumstances(self) -> tuple[str, str, str]:
        """What decides how a script comes out, besides itself and its task."""
        return json.dumps(asdict(self.limits), sort_keys=True), str(self.seed), self._machine

    def _key(self, task: Task, code: str) -> str:
        limits, seed, machine = self.circumstances()
        parts = (task.id, code, limits, seed, task.digest(), machine)
        return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()

    @cached_property
    def _machine(self) -> str:
        """What scripts run on: Python, the libraries that they can import, and how they are shut in."""
        versions = {"python": platform.python_version()}
        for name in LIBRARIES:
            with contextlib.suppress(metadata.PackageNotFoundError):
                versions[name] = metadata.version(name)
        return json.dumps([versions, self.executor.level])

    def _start(self, key: str, task: Task, code: str) -> Future[Judged]:
        """Run a script; its result is judged and stored as soon as it is there, in whatever order results arrive."""
        judged: Future[Judged] = Future()
        step = self._step

        def settle(run: Future[Result]) -> None:
            try:
                result = run.result()
                feedback = judge(task, code, result, self.grader)
                if self.store is not None and feedback.verdict is not Verdict.INFRASTRUCTURE:
                    self.store.store_result(key, {"feedback": feedback_to_dict(feedback), "step": step})
            except BaseException as error:  # raised again by `_wait`
                judged.set_exception(error)
            else:
                judged.set_result((feedback, result.submission))
            finally:
                self._answered = time.monotonic()

        def arrived(run: Future[Result]) -> None:
            # A thread of its own waits for the grader: that of the executor has runs to watch. None of a pool: at the
            # end of the process, when a last step is finished, pools take no more work.
            threading.Thread(target=settle, args=(run,), name="judge", daemon=True).start()

        request = Request(
            code=code,
            public_dir=task.public_dir,
            limits=self.limits,
            seed=self.seed,
            collect_bytes=task.max_bytes + 1,  # one more is enough to be refused as too large
        )
        self.grader.start()  # it gets ready while the script runs
        self.executor.submit(request).add_done_callback(arrived)
        return judged

    def _wait(self, key: str, task_id: str, judged: Future[Judged], executed: bool) -> Outcome:
        with self._lock:
            waiting = len(self._running)
        try:
            feedback, submission = self._result(judged)
        except FutureTimeout:
            raise WorkbenchError(
                f"The executor gave no answer for a script of task '{task_id}' ({waiting} waiting), nor any other in "
                f"{self.longest_s:.0f} s: run `workbench doctor` and start again with `workbench resume`."
            ) from None
        finally:
            with self._lock:  # only now: whoever submits it meanwhile finds it running or stored
                if self._running.get(key) is judged:
                    del self._running[key]
        lost = feedback.verdict is Verdict.INFRASTRUCTURE
        if lost and executed:
            self._counted.discard(key)  # should it be run once more, that is the first time
        return Outcome(feedback, submission, executed and not lost)

    @property
    def longest_s(self) -> float:
        """Seconds within which one of the executions under way must come to something: a run may be lost and be run
        again, and the grader's process may end and get one successor."""
        grading_s = self.grader.limit_s + max((task.grading_s for task in self.tasks.values()), default=0.0)
        return SLACK_S + self.executor.longest_s(self.limits) + 2 * (BOOT_S + grading_s)

    def _result(self, judged: Future[Judged]) -> Judged:
        """Wait as long as others of this environment are answered: each that is before it may take the longest, too.

        Raises TimeoutError once none was, after at most two times `longest_s`.
        """
        while True:
            since = time.monotonic()
            try:
                return judged.result(timeout=self.longest_s)
            except FutureTimeout:
                if judged.done():
                    return judged.result()  # a timeout of its own: to store a result on a network disk, say
                if self._answered < since:
                    raise


def judge(task: Task, code: str, result: Result, grader: Grader) -> Feedback:
    """What a finished execution means for the agent: verdict, failure kind, one reason, hidden and own score.

    A submission that the grader lost is `infrastructure`, as a run that the sandbox lost.
    """
    stdout, stderr = trim(result.stdout, KEPT_OUTPUT), trim(result.stderr, KEPT_OUTPUT)
    feedback = Feedback(
        verdict=result.verdict,
        code=code,
        stdout=stdout,
        stderr=stderr,
        cpu_s=result.cpu_s,
        wall_s=result.wall_s,
        own_score=parse_own_score(result.stdout),
        submission_sha=hashlib.sha256(result.submission).hexdigest() if result.submission is not None else None,
    )
    if result.verdict is not Verdict.OK:
        reason = failure_reason(result)
        return replace(feedback, reason=reason, failure=_classify(FAILURES, reason, result.verdict.value))
    try:
        graded = grader.grade(task, result.submission, "reward")
    except GradingLost as lost:
        failure = Verdict.INFRASTRUCTURE.value
        return replace(feedback, verdict=Verdict.INFRASTRUCTURE, reason=str(lost), failure=failure)
    if graded.score is None:
        missing = result.reason if result.submission is None else None  # a link, a folder, too large: says more
        reason = missing or graded.reason or "invalid submission"
        failure = _classify(INVALID, reason, "invalid_submission")
        return replace(feedback, verdict=Verdict.INVALID_SUBMISSION, reason=reason, failure=failure)
    return replace(feedback, score=graded.score, submission_sha=graded.content or feedback.submission_sha)


def failure_reason(result: Result) -> str:
    """One line for a program that did not end well: the last error line, or the limit it met."""
    if result.verdict is Verdict.INFRASTRUCTURE and result.reason:
        return result.reason
    if result.verdict is Verdict.TIMEOUT:
        return "stopped at its time limit"
    if result.verdict is Verdict.MEMORY_LIMIT:
        return "MemoryError: stopped at its memory limit"
    if result.verdict is Verdict.OUTPUT_LIMIT:
        return "stopped at its output limit"
    lines = [line.strip() for line in result.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"^[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning)\b", line)]
    if errors:
        return errors[-1][:300]
    return (lines[-1] if lines else result.reason or f"ended with exit code {result.exit_code}")[:300]


def _classify(patterns: Mapping[str, str], reason: str, otherwise: str) -> str:
    return next((name for name, pattern in patterns.items() if re.search(pattern, reason)), otherwise)


def feedback_to_dict(feedback: Feedback) -> dict[str, object]:
    """JSON-ready form of a feedback."""
    return {**asdict(feedback), "verdict": feedback.verdict.value}


def feedback_from_dict(values: Mapping[str, object]) -> Feedback:
    """The inverse of `feedback_to_dict`."""
    return Feedback(**{**values, "verdict": Verdict(values["verdict"])})  # type: ignore[arg-type]
