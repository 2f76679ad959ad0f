"""Judging a program: each test runs in a sandbox of its own, and what is expected of it is never inside.

The program sees the test's input on its stdin and nothing else: no file, no other test, no trace of the run before.
What it prints leaves as bytes; whether they are right is decided afterwards, here by `compare` or by a checker, a
program in another sandbox that never meets the judged one. So no verdict can be printed, and no answer can be found.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from workbench.sandbox.executor import Executor, Limits, Request
from workbench.sandbox.records import expect
from workbench.sandbox.verdicts import last_line
from workbench.tasks.compare import Comparison, compare
from workbench.types import Verdict, WorkbenchError

log = logging.getLogger(__name__)

ACCEPTED, WRONG = 42, 43
"""Exit codes of a checker, as in Kattis and ICPC problem packages."""

_WORD = re.compile(r"\\(?:x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|.)|\w+")
"""A word; or a character as Python writes it in an error, which would hide the word that begins after it."""
_VEIL = "…"


@dataclass(frozen=True, slots=True)
class Test:
    """One input, and what is expected for it."""

    name: str
    input: bytes
    answer: bytes

    def __post_init__(self) -> None:
        expect("name of a test", self.name, (str,), "text")
        for part in ("input", "answer"):
            value = getattr(self, part)
            expect(f"test '{self.name}': {part}", value, (bytes,), "bytes; `.encode()` makes bytes of text")


@dataclass(frozen=True, slots=True)
class Checker:
    """A Python program that decides, for problems with several right outputs.

    It finds the test's input and answer in its folder, as the files `test.in` and `test.ans`, and the output on its
    stdin, and ends with exit code 42 (accepted) or 43 (wrong). Whatever else happens to it is an error of the checker,
    not of the program.
    """

    code: str | bytes
    limits: Limits = field(default_factory=lambda: Limits(cpu_s=10.0, wall_s=30.0))

    def __post_init__(self) -> None:
        Request(self.code, limits=self.limits)  # refuses what it could not run


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
    """`judge_async` from code that is not asynchronous; in a notebook `await judge_async(...)`."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise WorkbenchError("`judge` does not work where an event loop runs: in a notebook `await judge_async(...)`.")
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
    Which cases come back does not depend on which of them end first. Raises WorkbenchError without tests, for arguments
    of other kinds, when the executor is closed, and when a checker's files are larger than its `limits.files_mb`.
    """
    if not tests:
        raise WorkbenchError("There are no tests to judge the program by: give at least one.")
    for test in tests:
        expect("a test", test, (Test,), "`Test(name, input, answer)`")
    expect("checker", checker, (Comparison, Checker), "`Comparison()`, or `Checker(code)` for several right outputs")
    places = asyncio.Semaphore(executor.workers)

    async def run(index: int) -> tuple[Case, str | None]:
        async with places:
            case, trouble = await _judge_one(executor, program, tests[index], limits, checker)
        if stop_at_first_failure and case.verdict is not Verdict.OK:
            for later in tasks[index + 1 :]:
                later.cancel()
        return case, trouble

    tasks = [asyncio.create_task(run(index)) for index in range(len(tests))]
    cases: list[Case] = []
    try:
        for task in tasks:
            case, trouble = await task
            cases.append(case)
            if trouble is not None:  # here: once for each case that comes back, not for those in flight beside it
                log.warning("test '%s': %s", case.name, trouble)
            if stop_at_first_failure and case.verdict is not Verdict.OK:
                break
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    failed = (case.verdict for case in cases if case.verdict is not Verdict.OK)
    return Judgement(next(failed, Verdict.OK), tuple(cases))


async def _judge_one(
    executor: Executor, program: str | bytes, test: Test, limits: Limits, checker: Comparison | Checker
) -> tuple[Case, str | None]:
    """The case; and what to log where the checker failed."""
    request = Request(program, stdin=test.input, limits=limits, collect=None, flavour="thin")
    result = await executor.run(request)
    if result.verdict is not Verdict.OK:
        return Case(test.name, result.verdict, result.cpu_s, result.reason), None
    trouble = None
    if isinstance(checker, Checker):
        verdict, reason, trouble = await _check(executor, result.stdout_bytes, test, checker)
    else:
        reason = await asyncio.to_thread(compare, result.stdout_bytes, test.answer, checker)
        verdict = Verdict.OK if reason is None else Verdict.WRONG_ANSWER
    return Case(test.name, verdict, result.cpu_s, reason), trouble


async def _check(
    executor: Executor, output: bytes, test: Test, checker: Checker
) -> tuple[Verdict, str | None, str | None]:
    """Verdict, reason; and what to log where the checker failed."""
    request = Request(
        checker.code,
        stdin=output,
        files={"test.in": test.input, "test.ans": test.answer},
        limits=checker.limits,
        collect=None,
        flavour="thin",
    )
    result = await executor.run(request)
    if result.verdict is Verdict.RUNTIME_ERROR and result.exit_code == ACCEPTED:
        return Verdict.OK, None, None
    if result.verdict is Verdict.RUNTIME_ERROR and result.exit_code == WRONG:
        return Verdict.WRONG_ANSWER, "the checker does not accept the output.", None
    # Not what it printed: that may be the answer.
    how = result.verdict.value if result.exit_code is None else f"{result.verdict.value}, exit code {result.exit_code}"
    reason = f"judge error: the checker ended with {how}, expected exit code {ACCEPTED} or {WRONG}."
    last = _veiled(last_line(result.stderr), test.answer)
    return Verdict.INFRASTRUCTURE, reason, f"{reason} Its last line on stderr: {last}" if last else reason


def _veiled(line: str, answer: bytes) -> str:
    """`line` for the log, without what would act on a terminal, the words found in the answer, and any number."""

    def veil(found: re.Match[str]) -> str:
        word = found[0]
        told = not word.isascii() or not word[0].isalpha() or word.lower().encode() in lowered
        return _VEIL if told else word

    lowered = answer.lower()
    shown = "".join(letter if letter.isprintable() else " " for letter in line)
    return _WORD.sub(veil, shown)
