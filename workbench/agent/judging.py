"""Judging a program: each test runs in a sandbox of its own, and what is expected of it is never inside.

The program sees the test's input on its stdin and nothing else: no file, no other test, no trace of the run before.
What it prints leaves as bytes; whether they are right is decided afterwards, here by `compare` or by a checker, a
program in another sandbox that never meets the judged one. So no verdict can be printed, and no answer can be found.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from workbench.sandbox.executor import Executor, Limits, Request
from workbench.tasks.compare import Comparison, compare
from workbench.types import Verdict, WorkbenchError

log = logging.getLogger(__name__)

ACCEPTED, WRONG = 42, 43
"""Exit codes of a checker, as in Kattis and ICPC problem packages."""


@dataclass(frozen=True, slots=True)
class Test:
    """One input, and what is expected for it."""

    name: str
    input: bytes
    answer: bytes


@dataclass(frozen=True, slots=True)
class Checker:
    """A Python program that decides, for problems with several right outputs.

    It finds the test's input and answer in its folder, as the files `test.in` and `test.ans`, and the output on its
    stdin, and ends with exit code 42 (accepted) or 43 (wrong). Whatever else happens to it is an error of the checker,
    not of the program.
    """

    code: str | bytes
    limits: Limits = field(default_factory=lambda: Limits(cpu_s=10.0, wall_s=30.0))


@dataclass(frozen=True, slots=True)
class Case:
    """What came of one test."""

    name: str
    verdict: Verdict
    cpu_s: float
    reason: str | None = None
    """One sentence for the log when the verdict is not ok; tells nothing of the answer."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What came of all tests, in their order; up to the first that failed where that was asked for."""

    verdict: Verdict
    """Of the first test that is not ok; ok when all are. `infrastructure` says nothing of the program."""
    cases: tuple[Case, ...]

    @property
    def max_cpu_s(self) -> float:
        return max(case.cpu_s for case in self.cases)


def judge(
    executor: Executor,
    program: str | bytes,
    tests: Sequence[Test],
    limits: Limits,
    checker: Comparison | Checker,
    stop_at_first_failure: bool = True,
) -> Judgement:
    """`judge_async` from code that is not asynchronous; in a notebook `await judge_async(…)`."""
    return asyncio.run(judge_async(executor, program, tests, limits, checker, stop_at_first_failure))


async def judge_async(
    executor: Executor,
    program: str | bytes,
    tests: Sequence[Test],
    limits: Limits,
    checker: Comparison | Checker,
    stop_at_first_failure: bool = True,
) -> Judgement:
    """Run a program against tests, as many at once as the executor has workers.

    Time is CPU time (`limits.cpu_s`), so that a busy machine changes no verdict; `limits.wall_s` only ends who sleeps.
    Which cases come back does not depend on which of them end first. Raises WorkbenchError without tests, when the
    executor is closed, and when a checker's files are larger than its `limits.files_mb`.
    """
    if not tests:
        raise WorkbenchError("There are no tests to judge the program by: give at least one.")
    places = asyncio.Semaphore(executor.workers)

    async def run(index: int) -> Case:
        async with places:
            case = await _judge_one(executor, program, tests[index], limits, checker)
        if stop_at_first_failure and case.verdict is not Verdict.OK:
            for later in tasks[index + 1 :]:
                later.cancel()
        return case

    tasks = [asyncio.create_task(run(index)) for index in range(len(tests))]
    cases: list[Case] = []
    try:
        for task in tasks:
            cases.append(await task)
            if stop_at_first_failure and cases[-1].verdict is not Verdict.OK:
                break
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    failed = (case.verdict for case in cases if case.verdict is not Verdict.OK)
    return Judgement(next(failed, Verdict.OK), tuple(cases))


async def _judge_one(
    executor: Executor, program: str | bytes, test: Test, limits: Limits, checker: Comparison | Checker
) -> Case:
    request = Request(program, stdin=test.input, limits=limits, collect=None, flavour="thin")
    result = await executor.run(request)
    if result.verdict is not Verdict.OK:
        return Case(test.name, result.verdict, result.cpu_s, result.reason)
    if isinstance(checker, Checker):
        verdict, reason = await _check(executor, result.stdout_bytes, test, checker)
    else:
        reason = await asyncio.to_thread(compare, result.stdout_bytes, test.answer, checker)
        verdict = Verdict.OK if reason is None else Verdict.WRONG_ANSWER
    return Case(test.name, verdict, result.cpu_s, reason)


async def _check(executor: Executor, output: bytes, test: Test, checker: Checker) -> tuple[Verdict, str | None]:
    request = Request(
        checker.code,
        stdin=output,
        files={"test.in": test.input, "test.ans": test.answer},
        limits=checker.limits,
        collect=None,
        flavour="thin",
    )
    result = await executor.run(request)
    if result.verdict is Verdict.RUNTIME_ERROR and result.exit_code in (ACCEPTED, WRONG):
        accepted = result.exit_code == ACCEPTED
        return (Verdict.OK, None) if accepted else (Verdict.WRONG_ANSWER, "the checker does not accept the output.")
    # Not what it printed: that may be the answer.
    how = result.verdict.value if result.exit_code is None else f"{result.verdict.value}, exit code {result.exit_code}"
    reason = f"judge error: the checker ended with {how}, expected exit code {ACCEPTED} or {WRONG}."
    log.warning("test '%s': %s", test.name, reason)
    return Verdict.INFRASTRUCTURE, reason
