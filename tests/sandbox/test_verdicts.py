"""One true verdict per run, within its limits, with the streams kept."""

from __future__ import annotations

import pickle
import time
from dataclasses import asdict, replace
from typing import Any

import pytest

from workbench.types import Verdict

OK, ERROR, TIMEOUT = Verdict.OK, Verdict.RUNTIME_ERROR, Verdict.TIMEOUT
MEMORY, OUTPUT = Verdict.MEMORY_LIMIT, Verdict.OUTPUT_LIMIT


@pytest.mark.parametrize(
    ("code", "verdict", "facts"),
    [
        ("", OK, {"exit_code": 0}),
        ("print('x')", OK, {"stdout": "x\n"}),
        ("import sys; sys.exit(0)", OK, {"exit_code": 0}),
        ("import sys; sys.exit(7)", ERROR, {"exit_code": 7}),
        ("import sys; sys.exit('bye')", ERROR, {"exit_code": 1, "stderr": "bye\n"}),
        ("import os; os._exit(9)", ERROR, {"exit_code": 9}),
        ("raise SystemExit", OK, {"exit_code": 0}),
        ("1/0", ERROR, {"exit_code": 1}),
        ("x = (", ERROR, {"exit_code": 1}),
        ("import os; os.kill(os.getpid(), 9)", ERROR, {"signal": 9}),
        ("import os; os.abort()", ERROR, {"signal": 6}),
        ("import ctypes; ctypes.string_at(0)", ERROR, {"signal": 11}),
        ("while True: pass", TIMEOUT, {}),
        ("import time; time.sleep(100)", TIMEOUT, {}),
        ("import os, time\nfor fd in (0, 1, 2): os.close(fd)\ntime.sleep(100)", TIMEOUT, {}),
        ("import atexit, time; atexit.register(time.sleep, 100)", TIMEOUT, {}),
        ("import threading, time; threading.Thread(target=time.sleep, args=(100,)).start()", TIMEOUT, {}),
        ("while True:\n    try: open(0).read(1)\n    except Exception: pass", TIMEOUT, {}),
        ("import signal; signal.alarm(1)\nwhile True: signal.pause()", ERROR, {"signal": 14}),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", TIMEOUT, {}),
        ("raise KeyboardInterrupt", ERROR, {"signal": 2}),
        ("import os; os.close(1); print('x')", ERROR, {"exit_code": 120}),
        ("import sys; sys.stdout.close(); print('x')", ERROR, {"exit_code": 1}),
        ("import sys; sys.stdout = sys.stderr = None; print('x')", OK, {"stdout": ""}),
        ("import sys; sys.excepthook = None; 1/0", ERROR, {"exit_code": 1}),
        ("class E(Exception):\n    def __str__(self): raise self\nraise E", ERROR, {"exit_code": 1}),
        ("raise SystemExit(2**70)", ERROR, {"exit_code": 255}),
        ("raise SystemExit(256)", OK, {"exit_code": 0}),
        ("raise SystemExit(-1)", ERROR, {"exit_code": 255}),
        ("import os; os.fork(); print('x')", OK, {"stdout": "x\nx\n"}),
        ("import time; time.time = time.monotonic = lambda: 0\nwhile True: pass", TIMEOUT, {}),
        ("print('a' * 300_000)", OUTPUT, {"truncated": True}),
        ("print('\\0\\x1b[2J')", OK, {"stdout": "\0\x1b[2J\n"}),
        ("x = []\nwhile True: x.append(bytearray(10**7))", MEMORY, {}),
        ("x = []\ntry:\n    while True: x.append(bytearray(10**7))\nexcept MemoryError: print('caught')", OK, {}),
        ("import numpy; numpy.zeros(10**12)", MEMORY, {}),
        ("import mmap\nm = mmap.mmap(-1, 10**9)\nfor i in range(0, 10**9, 4096): m[i] = 1", MEMORY, {}),
        ("while True: print('x' * 65536)", OUTPUT, {"truncated": True}),
        ("print('a'); raise KeyError('b')", ERROR, {"stdout": "a\n"}),
        (
            "import sys; sys.stdout.buffer.write(b'\\xef\\xbb\\xbf\\xff\\0\\r\\n')",
            OK,
            {"stdout_bytes": b"\xef\xbb\xbf\xff\0\r\n", "stdout": "\ufeff\ufffd\0\r\n"},
        ),
        (
            "import sys; sys.stderr.buffer.write(b'\\xff\\r\\n'); sys.exit(1)",
            ERROR,
            {"stderr_bytes": b"\xff\r\n", "stderr": "\ufffd\r\n", "reason": "\ufffd"},
        ),
        ("print('naïve 😀', '\\ud800'.encode('utf-8', 'replace'))", OK, {"stdout": "naïve 😀 b'?'\n"}),
    ],
)
def test_how_a_run_ends(run, code: str, verdict: Verdict, facts: dict[str, Any]) -> None:
    began = time.monotonic()
    result = run(code, cpu_s=1.0, wall_s=1.5)
    assert time.monotonic() - began < 1.5 + 1.0 + 1.0  # limit, grace, a busy machine
    assert result.verdict is verdict, result
    assert {name: getattr(result, name) for name in facts} == facts
    assert (result.reason is None) == (verdict is OK)


def test_endless_recursion_is_an_error_of_the_program(run) -> None:
    plain = run("def f(): return f()\nf()")
    assert plain.verdict is ERROR
    assert "RecursionError" in plain.stderr
    deep = run("import sys; sys.setrecursionlimit(10**9)\ndef f(): return f()\nf()", memory_mb=512, cpu_s=3.0)
    assert deep.verdict in (ERROR, TIMEOUT, MEMORY)


def test_deep_recursion_within_reason_works(run) -> None:
    code = "import sys; sys.setrecursionlimit(20000)\ndef f(n): return 0 if n == 0 else 1 + f(n - 1)\nprint(f(9000))"
    assert run(code).stdout == "9000\n"


def test_memory_is_summed_over_the_processes_of_a_run(run) -> None:
    code = "import os, time\nfor _ in range(8):\n    if os.fork() == 0:\n        x = bytearray(10**8); time.sleep(30)\ntime.sleep(30)"
    assert run(code, memory_mb=300, wall_s=6.0).verdict is MEMORY


def test_cpu_is_summed_over_the_processes_of_a_run(run) -> None:
    result = run("import os\nos.fork(); os.fork()\nwhile True: pass", cpu_s=1.0, wall_s=10.0)
    assert result.verdict is TIMEOUT
    assert result.wall_s < 5


IGNORED = (
    "import os, signal, time\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\nfor _ in range(5):\n    if os.fork() == 0:\n"
    "        while time.process_time() < 0.2: pass\n        os._exit(0)\n    try: os.wait()\n    except ChildProcessError: pass"
)
"""The kernel adds the time of such children to nobody's."""


def test_cpu_of_children_that_nobody_waits_for_is_counted(run) -> None:
    result = run(IGNORED, cpu_s=0.5, wall_s=20.0)
    assert result.verdict is TIMEOUT
    assert "CPU time" in result.reason
    assert run(IGNORED, cpu_s=5.0, wall_s=20.0).cpu_s > 0.6


def test_input_is_read_and_need_not_be(run) -> None:
    assert run("print(sum(map(int, open(0))))", stdin=b"1\n2\n3\n").stdout == "6\n"
    assert run("print('done')", stdin=b"x" * 50_000_000, wall_s=10.0).stdout == "done\n"
    assert run("print(len(open(0, 'rb').read()))", stdin=b"x" * 20_000_000, wall_s=10.0).stdout == "20000000\n"


def test_long_errors_keep_their_end(run) -> None:
    result = run("import sys; sys.stderr.write('x' * 5_000_000 + 'THE END'); print('ok')")
    assert result.verdict is OK
    assert result.stdout == "ok\n"
    assert result.stderr.endswith("THE END")
    assert len(result.stderr) < 300_000
    assert result.truncated


def test_chance_is_fixed_by_the_seed(run) -> None:
    code = "import random, numpy; print(random.random(), numpy.random.rand())"
    first, again, other = run(code, seed=1), run(code, seed=1), run(code, seed=2)
    assert first.stdout == again.stdout != other.stdout


def test_times_and_memory_are_told(run) -> None:
    busy = run("s = sum(i * i for i in range(3_000_000)); x = bytearray(5 * 10**7)")
    assert 0.05 < busy.cpu_s <= busy.wall_s * 1.5 + 0.1
    assert 45 < busy.peak_mb < 120


def test_a_result_can_be_copied_and_kept(run) -> None:
    result = run("import sys; sys.stdout.buffer.write(b'\\xff')")
    assert pickle.loads(pickle.dumps(result)) == replace(result) == result
    assert asdict(result)["stdout_bytes"] == b"\xff"
    assert replace(result, stdout_bytes=b"\xfe") != result


def test_a_submission_is_collected_as_bytes(run) -> None:
    assert run("open('submission.csv', 'wb').write(bytes(range(256)))").submission == bytes(range(256))
    assert run("pass").submission is None
