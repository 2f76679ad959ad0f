"""The grader's own process: the same grades as in this one, and nothing that a submission does reaches further."""

from __future__ import annotations

import gc
import hashlib
import logging
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.tasks.catalog import load_tasks
from workbench.tasks.grader import Grader, GradingLost
from workbench.tasks.mle import MleTask, answers, grade, load_task, submission_bytes
from workbench.tasks.task import SPLITS
from workbench.types import WorkbenchError

ALL = load_tasks("all")
TASK = next(task for task in ALL if task.metric.name == "rmse")

WORKER = """
import os, sys, time
from workbench.tasks import grader, metrics

def score(y_true, y_pred):
    match float(y_pred.max()):
        case 666: # as C code that holds the interpreter: no signal handler of Python's gets its turn
            while True: pass
        case 667: bytearray(2**31)
        case 668: os._exit(3)
        case 669: return float("nan")
        case 670: raise ValueError("a fault of ours")
        case 671: print("printed", flush=True)
        case 672: time.sleep(0.2)
    return 0.5

import dataclasses
metrics.METRICS["rmse"] = dataclasses.replace(metrics.METRICS["rmse"], score=score)
from workbench.tasks import mle
grader.main()
"""
HANG, MEMORY, END, NAN, FAULT, PRINT, SLOW = range(666, 673)


def said(value: float) -> bytes:
    return submission_bytes(TASK, np.full((len(answers(TASK).truth), 1), float(value)))


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with_process = Grader()
    yield with_process
    with_process.close()


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    program = tmp_path_factory.mktemp("worker") / "worker.py"
    program.write_text(WORKER)
    return sys.executable, str(program)


@pytest.fixture(scope="module")
def odd(command: tuple[str, str]) -> Iterator[Grader]:
    """A grader whose metric does odd things at certain numbers."""
    made = Grader(limit_s=2.0, memory_mb=512, command=command)
    yield made
    made.close()


def pid(grader: Grader) -> int:
    assert grader._process is not None
    return grader._process.pid


def gone(process: int, within_s: float = 10.0) -> bool:
    """Whether it ends. It is no child of ours, or was collected: whoever is left to collect it may take its time."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return process not in children()
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


def children() -> list[int]:
    found = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return [int(number) for path in found for number in path.read_text().split()]


@pytest.mark.parametrize("task", ALL, ids=lambda task: task.id)
def test_grades_are_those_of_this_process(grader: Grader, task: MleTask) -> None:
    sample = (task.public_dir / "sample_submission.csv").read_bytes()
    shifted = submission_bytes(task, np.roll(answers(task).truth, 1, axis=0))
    for data in (None, b"", sample, shifted, sample[:-30], sample.replace(b",", b";"), "ü,y\n".encode("utf-16")):
        for split in SPLITS:
            assert grader.grade(task, data, split) == grade(task, data, split)


def test_any_bytes_give_a_finite_score_or_one_line(grader: Grader) -> None:
    assert grader.grade(TASK, said(1), "reward").score is not None
    worker = pid(grader)
    names = ",".join((TASK.id_column, *TASK.target_columns)).encode() + b"\n"
    near = st.text(alphabet='0123456789,.-+e"\r\n nainfx\0é', max_size=60).map(str.encode)

    @given(st.sampled_from([b"", names, said(1)[:-20]]), st.binary(max_size=300) | near)
    @settings(max_examples=150, deadline=1000)
    def check(before: bytes, after: bytes) -> None:
        result = grader.grade(TASK, before + after, "reward")
        if result.reason is None:
            assert result.score is not None
            assert math.isfinite(result.score)
        else:
            assert result.score is None
            assert result.reason.endswith(".")
            assert len(result.reason.splitlines()) == 1

    check()
    assert pid(grader) == worker, "no bytes end the worker"


def test_a_submission_that_is_graded_for_ever_costs_itself_only(odd: Grader, caplog: pytest.LogCaptureFixture) -> None:
    values = [1, 2, HANG, 3, 4, 5, 6, 7]
    assert odd.grade(TASK, said(0), "reward").score == 0.5
    first, began, lost = pid(odd), time.monotonic(), []
    with caplog.at_level(logging.WARNING, "workbench.tasks.grader"):
        for value in values:
            try:
                assert odd.grade(TASK, said(value), "reward").score == 0.5
            except GradingLost as error:
                lost.append((value, str(error)))
    assert lost == [(HANG, "grading took longer than 2 s.")]
    assert time.monotonic() - began < 30
    [line] = [record.getMessage() for record in caplog.records]
    assert f"'{TASK.id}'" in line
    assert hashlib.sha256(said(HANG)).hexdigest() in line
    assert pid(odd) != first
    assert gone(first)


def test_memory_is_limited(odd: Grader) -> None:
    with pytest.raises(GradingLost, match="more memory than"):
        odd.grade(TASK, said(MEMORY), "reward")
    assert odd.grade(TASK, said(1), "reward").score == 0.5


def test_a_worker_that_ends_is_replaced_once_per_submission(odd: Grader) -> None:
    with pytest.raises(GradingLost, match="ended twice"):
        odd.grade(TASK, said(END), "reward")
    before = pid(odd)
    os.kill(before, signal.SIGKILL)
    assert odd.grade(TASK, said(1), "reward").score == 0.5
    assert pid(odd) != before


def test_a_score_that_is_not_finite_is_never_passed_on(odd: Grader) -> None:
    with pytest.raises(WorkbenchError, match="of a valid submission is nan on the rows reward"):
        odd.grade(TASK, said(NAN), "reward")


def test_a_fault_of_ours_shows_where_it_was(odd: Grader) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)in score\n.*ValueError: a fault of ours"):
        odd.grade(TASK, said(FAULT), "reward")


def test_what_is_printed_there_is_no_answer(odd: Grader) -> None:
    assert [odd.grade(TASK, said(value), "reward").score for value in (PRINT, 1, PRINT)] == [0.5] * 3


def test_a_broken_task_folder_is_told_in_its_sentence(grader: Grader, tmp_path: Path) -> None:
    copied = shutil.copytree(TASK.folder, tmp_path / "copied")
    task = load_task(copied)
    (copied / "private" / "answers.csv").write_text("id\n1\n")
    with pytest.raises(WorkbenchError, match="does not fit config"):
        grader.grade(task, b"x", "reward")


def test_close_ends_what_runs_and_who_waits(command: tuple[str, str]) -> None:
    odd = Grader(limit_s=60.0, command=command)
    assert odd.grade(TASK, said(1), "reward").score == 0.5
    process, raised = pid(odd), list[BaseException]()

    def wait() -> None:
        try:
            odd.grade(TASK, said(HANG), "reward")
        except BaseException as error:
            raised.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.2)
    began = time.monotonic()
    odd.start()
    assert time.monotonic() - began < 0.1, "who starts it does not wait for who uses it"
    odd.close()
    odd.close()
    waiting.join(5)
    assert not waiting.is_alive()
    assert isinstance(raised[0], WorkbenchError)
    assert process not in children()
    with pytest.raises(WorkbenchError, match="closed"):
        odd.start()


def test_dropping_it_ends_the_worker() -> None:
    dropped = Grader()
    dropped.start()
    process = pid(dropped)
    assert process in children()
    del dropped
    gc.collect()
    assert process not in children()


@pytest.mark.parametrize("value", [SLOW, HANG], ids=["idle", "busy"])
def test_the_worker_dies_with_a_trainer_that_is_killed(command: tuple[str, str], tmp_path: Path, value: int) -> None:
    trainer = f"""
import threading
from pathlib import Path
from workbench.tasks.grader import Grader
from workbench.tasks.mle import load_task
grader = Grader(limit_s=1.0, command={command!r})
task = load_task({str(TASK.folder)!r})
first, second = (Path({str(tmp_path)!r}, name).read_bytes() for name in ("first", "second"))
grader.grade(task, first, "reward")
threading.Timer(0.4, lambda: print(grader._process.pid, flush=True)).start()
grader.grade(task, second, "reward")
threading.Event().wait()
"""
    (tmp_path / "first").write_bytes(said(1))
    (tmp_path / "second").write_bytes(said(value))
    with subprocess.Popen([sys.executable, "-c", trainer], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        process.kill()
    assert gone(worker)


def test_a_worker_that_cannot_start_is_told() -> None:
    ending = Grader(command=(sys.executable, "-c", "raise SystemExit(1)"))
    with pytest.raises(WorkbenchError, match="could not start"):
        ending.grade(TASK, b"", "reward")
    ending.close()
    with pytest.raises(WorkbenchError, match="could not start"):
        Grader(command=("/no/such/python",)).start()


def test_ctrl_c_is_not_for_the_worker(grader: Grader) -> None:
    grader.grade(TASK, b"", "reward")
    assert os.getsid(pid(grader)) != os.getsid(0)
