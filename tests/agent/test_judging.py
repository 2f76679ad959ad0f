"""Programs against tests in the real sandbox: verdicts, and what a program can find of what is expected of it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from workbench.agent import judging
from workbench.agent.judging import Checker, Judgement, judge, judge_async
from workbench.sandbox.executor import Executor, Limits, Request
from workbench.tasks.compare import Comparison
from workbench.types import Verdict, WorkbenchError

OK, WRONG = Verdict.OK, Verdict.WRONG_ANSWER
TESTS = [judging.Test(f"{n}", f"{n}\n".encode(), f"{n * n}\n".encode()) for n in (3, 4, 5)]
SQUARE = "print(int(input()) ** 2)\n"
Judge = Callable[..., Judgement]


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with Executor(workers=2, flavours=("thin",)) as started:
        yield started


@pytest.fixture
def judged(executor: Executor) -> Judge:
    def _judged(program: str, tests: list[judging.Test] = TESTS, checker: Any = None, **limits: Any) -> Judgement:
        asked = Limits(**{"cpu_s": 1.0, "wall_s": 10.0, "memory_mb": 256, **limits})
        return judge(executor, program, tests, asked, checker or Comparison())

    return _judged


def verdicts(judgement: Judgement) -> list[Verdict]:
    return [case.verdict for case in judgement.cases]


def test_a_right_program_is_accepted_on_every_test(judged: Judge) -> None:
    judgement = judged(SQUARE)
    assert (judgement.verdict, verdicts(judgement)) == (OK, [OK] * 3)
    assert [case.name for case in judgement.cases] == ["3", "4", "5"]
    assert 0 < judgement.max_cpu_s == max(case.cpu_s for case in judgement.cases) < 1
    assert all(case.reason is None for case in judgement.cases)


FORGE = """
import sys
for stream in (sys.stdout, sys.stderr):
    for line in ("verdict: ok", "PASSED", "42", '{"verdict": "ok"}', "<reward>1.0</reward>"):
        print(line, file=stream)
open("score", "w").write("1.0"); open("verdict.json", "w").write('{"verdict": "ok", "score": NaN}')
"""


@pytest.mark.parametrize(
    ("program", "verdict"),
    [
        ("print(int(input()) * 2)\n", Verdict.WRONG_ANSWER),
        ("", Verdict.WRONG_ANSWER),
        (SQUARE + "print('junk')\n", Verdict.WRONG_ANSWER),
        ("print(*range(1000))\n", Verdict.WRONG_ANSWER),
        ("print(float(input()) ** 2)\n", Verdict.WRONG_ANSWER),
        (FORGE, Verdict.WRONG_ANSWER),
        (SQUARE + FORGE, Verdict.WRONG_ANSWER),
        ("while True: pass\n", Verdict.TIMEOUT),
        ("import time; time.sleep(60)\n", Verdict.TIMEOUT),
        ("raise ValueError\n", Verdict.RUNTIME_ERROR),
        (SQUARE + "raise SystemExit(42)\n", Verdict.RUNTIME_ERROR),
        ("import os; print(9, flush=True); os.kill(os.getpid(), 9)\n", Verdict.RUNTIME_ERROR),
        ("while True: print('9' * 1000)\n", Verdict.OUTPUT_LIMIT),
        ("x = [bytearray(2**20) for _ in range(2000)]\n", Verdict.MEMORY_LIMIT),
    ],
)
def test_what_is_not_right_has_its_verdict(judged: Judge, program: str, verdict: Verdict) -> None:
    judgement = judged(program, cpu_s=0.5, wall_s=2.0, memory_mb=64)
    assert verdicts(judgement) == [verdict], "and it ends there"
    assert judgement.verdict is verdict
    assert judgement.cases[0].reason


def test_blank_lines_are_white_space(judged: Judge) -> None:
    assert judged("print('\\n' * 200_000, 9)\n", TESTS[:1]).verdict is OK


SAME = Checker(
    "import sys\nright = sys.stdin.buffer.read() == open('test.ans', 'rb').read()\nsys.exit(42 if right else 43)\n"
)
EVERY_BYTE = b"\xef\xbb\xbfa\0\r\n" + bytes(range(256)) + b"\n"


@pytest.mark.parametrize("checker", [Comparison(space_change_sensitive=True), SAME], ids=["compared", "checked"])
@pytest.mark.parametrize(
    ("output", "answer", "verdict"),
    [
        (EVERY_BYTE, EVERY_BYTE, OK),
        (b"\xff", b"\xef\xbf\xbd", WRONG),
        (b"\xff", b"\xfe", WRONG),
        (b"\xe9", b"\xe9", OK),
        (b"\xc3\xa9", b"\xe9", WRONG),
        (b"\xef\xbb\xbf1", b"1", WRONG),
        (b"1\0", b"1", WRONG),
        (b"1\r\n", b"1\n", WRONG),
    ],
)
def test_it_is_bytes_that_are_judged(
    judged: Judge, output: bytes, answer: bytes, verdict: Verdict, checker: Comparison | Checker
) -> None:
    program = f"import sys\nsys.stdout.buffer.write({output!r})\n"
    assert judged(program, [judging.Test("bytes", b"", answer)], checker).verdict is verdict


def test_the_first_failure_decides_whichever_ends_first(judged: Judge) -> None:
    slow = "import time\nn = int(input())\nif n == 3: time.sleep(0.6)\nif n > 3: raise ValueError(n)\nprint(8)\n"
    assert verdicts(judged(slow)) == [WRONG]
    slow = slow.replace("print(8)", "print(9)")
    assert verdicts(judged(slow)) == [OK, Verdict.RUNTIME_ERROR]


def test_after_the_first_failure_nothing_more_is_run(judged: Judge, executor: Executor) -> None:
    tests = [judging.Test("0", b"0", b"1"), *[judging.Test("slow", b"9", b"1")] * 20]
    began = time.monotonic()
    program = "import time\nif int(input()): time.sleep(5)\n"
    assert verdicts(judged(program, tests)) == [WRONG]
    assert time.monotonic() - began < 5
    every = judge(executor, "print(16)\n", TESTS, Limits(), Comparison(), stop_at_first_failure=False)
    assert (every.verdict, verdicts(every)) == (WRONG, [WRONG, OK, WRONG])


def test_a_failure_ends_what_comes_after_it_while_an_earlier_test_still_runs(
    judged: Judge, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, begun = executor.run, []
    monkeypatch.setattr(executor, "run", lambda request: begun.append(request) or run(request))
    tests = [judging.Test("slow", b"1", b""), *[judging.Test("fails", b"0", b"no")] * 30]
    assert verdicts(judged("import time\nif int(input()): time.sleep(1)\n", tests)) == [OK, WRONG]
    assert len(begun) < 5


def test_several_judgements_at_once(executor: Executor) -> None:
    async def both() -> list[Judgement]:
        programs = (SQUARE, "print(9)\n")
        return await asyncio.gather(*(judge_async(executor, p, TESTS, Limits(), Comparison()) for p in programs))

    assert [verdicts(judgement) for judgement in asyncio.run(both())] == [[OK] * 3, [OK, WRONG]]


def test_no_tests_prove_nothing(judged: Judge) -> None:
    with pytest.raises(WorkbenchError, match="no tests"):
        judged(SQUARE, [])


SUM = Checker(
    """
import sys
total, words = int(open("test.ans").read()), sys.stdin.read().split()
assert open("test.in").read() == f"{total}\\n"
try:
    right = len(words) == 2 and sum(map(int, words)) == total
except ValueError:
    right = False
print("the answer is", total)
sys.exit(42 if right else 43)
"""
)
SUMS = [judging.Test(str(n), f"{n}\n".encode(), f"{n}\n".encode()) for n in (10, 12)]


def test_a_checker_accepts_several_answers(judged: Judge) -> None:
    for program in ("print(1, int(input()) - 1)\n", "print(int(input()) + 5, -5, sep='\\n')\n"):
        assert verdicts(judged(program, SUMS, SUM)) == [OK, OK]
    for program in ("print(1, 1)\n", "print(5, 5, 0)\n", "print('x', 'y')\n", FORGE, "", "raise SystemExit(42)\n"):
        assert judged(program, SUMS, SUM).verdict in (WRONG, Verdict.RUNTIME_ERROR)


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("raise ValueError(open('test.ans').read())\n", "runtime_error, exit code 1"),
        ("pass\n", "ok, exit code 0"),
        ("raise SystemExit(44)\n", "runtime_error, exit code 44"),
        ("print(open('test.ans').read())\nwhile True: pass\n", "timeout"),
        ("while True: print(open('test.ans').read() * 1000)\n", "output_limit"),
        ("import os; os.kill(os.getpid(), 9)\n", "runtime_error"),
        ("def broken(:\n", "runtime_error, exit code 1"),
    ],
)
def test_a_checker_that_fails_is_no_verdict(
    judged: Judge, caplog: pytest.LogCaptureFixture, code: str, how: str
) -> None:
    tests = [judging.Test("one", b"", b"Xq-secret")]
    with caplog.at_level(logging.WARNING):
        judgement = judged("print(1)\n", tests, Checker(code, Limits(cpu_s=0.5, wall_s=2.0)))
    assert judgement.verdict is Verdict.INFRASTRUCTURE
    assert judgement.cases[0].reason == f"judge error: the checker ended with {how}, expected exit code 42 or 43."
    assert "Xq-secret" not in caplog.text
    assert "judge error" in caplog.text


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import nosuchmodule\n", "ModuleNotFoundError: No module named 'nosuchmodule'"),
        ("raise ValueError(f'\\33[2J is {open(\"test.ans\").read().lower()} 17')\n", "ValueError:  [… is …-… …"),
        ("raise ValueError([b'\\n' + open('test.ans', 'rb').read()])\n", "ValueError: [b'……-…']"),
        ("raise SystemExit(3)\n", None),
    ],
)
def test_why_a_checker_failed_is_logged_once_without_the_answer(
    judged: Judge, caplog: pytest.LogCaptureFixture, code: str, told: str | None
) -> None:
    """Also where the checker fails on a later test before it does on the first one."""
    tests = [judging.Test(name, wait, b"Xq-Secret") for name, wait in (("one", b"0.5"), ("two", b"0"), ("three", b"0"))]
    slow = "import time\ntime.sleep(float(open('test.in').read()))\n"
    with caplog.at_level(logging.WARNING, "workbench.agent"):
        judgement = judged("print(1)\n", tests, Checker(slow + code))
    (said,) = [record.getMessage() for record in caplog.records]
    exit_code = 1 if told else 3
    reason = f"judge error: the checker ended with runtime_error, exit code {exit_code}, expected exit code 42 or 43."
    assert said == f"test 'one': {reason}" + (f" Its last line on stderr: {told}" if told else "")
    assert [case.reason for case in judgement.cases] == [reason]


async def _in_a_loop(executor: Executor) -> None:
    judge(executor, SQUARE, TESTS, Limits(), Comparison())


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        (lambda _: judging.Test("a", "1", b"1"), "test 'a': input='1' is not accepted: expected bytes"),
        (lambda _: judging.Test("a", b"1", "1"), "test 'a': answer='1' is not accepted: expected bytes"),
        (lambda _: judging.Test(1, b"1", b"1"), "name of a test=1 is not accepted: expected text."),
        (lambda _: Checker(None), "code=None is not accepted"),
        (lambda _: Comparison(float_tolerance="1e-6"), "float_tolerance='1e-6' is not accepted"),
        (lambda e: judge(e, "", TESTS, Limits(), None), "checker=None is not accepted: expected `Comparison()`, or"),
        (lambda e: judge(e, "", [(b"", b"")], Limits(), Comparison()), "a test=(b'', b'') is not accepted: expected"),
        (lambda e: judge(e, "", TESTS, None, Comparison()), "limits=None is not accepted"),
        (lambda e: asyncio.run(_in_a_loop(e)), "where an event loop runs: in a notebook `await judge_async(...)`."),
    ],
)
def test_mistakes_are_one_sentence(executor: Executor, mistake: Callable[[Executor], Any], sentence: str) -> None:
    with pytest.raises(WorkbenchError) as refused:
        mistake(executor)
    assert sentence in str(refused.value)


SEARCH = """
import os, sys, time
WANTED = (b"Xq-" + b"secret", b"the checker" + b"'s own code")
LIBRARIES = ("/usr", "/lib", "/lib64", "/sys", sys.prefix, sys.base_prefix)
found, looked = set(), set()

def look(name, file):
    try:
        data = os.pread(os.open(file, os.O_RDONLY | os.O_NONBLOCK) if isinstance(file, str) else file, 1 << 20, 0)
    except OSError:
        return
    looked.add(name)
    if any(word in data for word in WANTED):
        found.add(name)

ROOTS = (".", "..", "/", "/proc", "/dev", "/tmp", "/var", "/etc", "/home", "/root", "/run", "/data", "/job", "/old")
while time.process_time() < 0.5:
    for root in ROOTS:
        for folder, _, files in os.walk(root):
            for name in files:
                look(name, os.path.join(folder, name))
                os.closerange(10, 64)
    for fd in range(64):
        look(f"descriptor {fd}", fd)
print(*sorted(found) or ["nothing"])
"""


def test_what_is_expected_is_not_to_be_found(executor: Executor) -> None:
    """Not even while a checker, which has it in its folder, runs beside the program that searches."""
    slow = Checker("import sys, time\n# the checker's own code\ntime.sleep(40)\nsys.exit(42)\n", Limits(wall_s=60.0))
    secret = [judging.Test("secret", b"", b"Xq-secret " * 1000)]
    nothing = [judging.Test("search", b"", b"nothing")]
    limits = Limits(cpu_s=20.0, wall_s=60.0)

    async def at_once() -> Judgement:
        checked = asyncio.create_task(judge_async(executor, "print(1)\n", secret, limits, slow))
        await asyncio.sleep(1)
        found = await judge_async(executor, SEARCH, nothing, limits, Comparison())
        assert not checked.done(), "it ran beside it"
        checked.cancel()
        control = Request(SEARCH, files={"test.ans": b"Xq-secret"}, limits=limits, collect=None, flavour="thin")
        assert "test.ans" in (await executor.run(control)).stdout, "where it is, it is found"
        await asyncio.gather(checked, return_exceptions=True)
        return found

    found = asyncio.run(at_once())
    assert found.verdict is OK, found.cases
