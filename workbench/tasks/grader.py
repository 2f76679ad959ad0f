"""Grading in a process of its own: what a submission does to its grader, it does not do to the training.

`Grader` keeps one small worker, `python -m workbench.tasks.grader`, and asks it over its stdin and stdout: task
folder, split, bytes; a score or a reason comes back. A submission that takes longer than the limit, or more memory,
costs itself only: the worker is killed, the next question starts another. It ends when its stdin does, so it never
outlives the process that asks, not even one that is killed; a question that it is busy with then ends by its alarm.

Not a thread: none can be stopped. Not `multiprocessing`: a fork of a process with threads may hang, and a spawn imports
the user's main module again. The commands that grade and nothing else (`workbench grade`, `workbench tasks check`) call
`Task.grade` themselves: their process is one of its own already. So does `workbench evaluate`, once for each final
submission: the worker has found it valid before. A task of mle-bench, whose grader is code of that checkout, takes a
worker even then: `shared`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import signal
import struct
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from workbench.tasks.catalog import load
from workbench.tasks.task import NOTHING, Grade, Split, Task
from workbench.types import WorkbenchError

__all__ = ["Grader", "GradingLost", "shared"]

log = logging.getLogger(__name__)

COMMAND = (sys.executable, "-P", "-m", "workbench.tasks.grader")
LIMIT_S = 10.0
"""Seconds of wall time for one submission; one takes milliseconds."""
MEMORY_MB = 2048
"""Address space beyond what the worker has when it is ready."""
BOOT_S = 120.0
"""Seconds until the worker must have its libraries imported."""
_LENGTH = struct.Struct(">Q")


class GradingLost(Exception):
    """A submission was not graded, through no proven fault of its own; the text says why, as one sentence."""


class Grader:
    """Grades submissions one at a time. Thread-safe; ends with `close`, when it is dropped, or with this process."""

    def __init__(
        self, *, limit_s: float = LIMIT_S, memory_mb: int = MEMORY_MB, command: Sequence[str] = COMMAND
    ) -> None:
        self.limit_s = limit_s
        self._memory_mb = memory_mb
        self._command = tuple(command)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._end = lambda: None  # of the present process, by whoever is first
        self._ready = False
        self._closed = threading.Event()

    def start(self) -> None:
        """Start the worker unless there is one. Returns at once: it imports its libraries meanwhile."""
        if self._lock.acquire(blocking=False):  # who has it starts the worker
            try:
                self._running()
            finally:
                self._lock.release()

    def grade(self, task: Task, submission: bytes | None, split: Split) -> Grade:
        """`task.grade_here`, elsewhere.

        Raises GradingLost past the limits, WorkbenchError for a task folder that is broken and when the worker does not
        start, RuntimeError with the worker's traceback for what else was raised there.
        """
        if submission is None:
            return Grade(None, NOTHING)
        header = {
            "folder": str(task.folder),
            "repo": task.repo and str(task.repo),
            "split": split,
            "limit_s": self.limit_s + task.grading_s,
            "memory_mb": self._memory_mb + task.grading_mb,
        }
        try:
            answer = self._answer(header, submission)
        except GradingLost as lost:
            sha = hashlib.sha256(submission).hexdigest()
            log.warning("a submission to task '%s' was not graded (sha256 %s): %s", task.id, sha, lost)
            with contextlib.suppress(WorkbenchError):  # the next question says why there is no worker
                self.start()
            raise
        if "mistake" in answer:
            raise WorkbenchError(answer["mistake"])
        if "error" in answer:
            raise RuntimeError(f"grading a submission to task '{task.id}' failed:\n{answer['error']}")
        return Grade(**answer)

    def close(self) -> None:
        """End the worker, whatever it does. Idempotent; whoever waits for a grade gets WorkbenchError."""
        self._closed.set()
        if process := self._process:
            process.kill()  # before the lock: its holder waits for the worker
        with self._lock:
            self._drop()

    def _answer(self, header: dict[str, Any], submission: bytes) -> dict[str, Any]:
        with self._lock:
            for _ in range(2):  # a worker that somebody killed gets one successor
                process = self._running()
                try:
                    ready = self._is_ready(process)
                    answer = self._ask(process, header, submission) if ready else None
                except BaseException:  # also Ctrl-C: the answer to this would be taken for that to the next question
                    self._drop()
                    raise
                if answer is not None:
                    return answer
                self._drop()
            if not ready:
                raise self._not_started(f"it ended, or took longer than {BOOT_S:g} s")
            raise GradingLost("the grader's process ended twice.")

    def _ask(
        self, process: subprocess.Popen[bytes], header: dict[str, Any], submission: bytes
    ) -> dict[str, Any] | None:
        """One question; None when the worker ended."""
        assert process.stdin is not None
        with _deadline(process, header["limit_s"]) as late:
            with contextlib.suppress(OSError):
                _send(process.stdin, json.dumps(header).encode(), submission)
            answer = _receive(process.stdout)
        if answer is None and late.is_set():
            raise GradingLost(f"grading took longer than {header['limit_s']:g} s.")
        if answer is None:
            return None
        found = json.loads(answer)
        if "lost" in found:
            raise GradingLost(found["lost"])
        return found

    def _running(self) -> subprocess.Popen[bytes]:
        """The worker, started when there is none. Raises WorkbenchError."""
        if self._process is not None and self._process.poll() is not None:
            self._drop()
        if self._closed.is_set():
            raise WorkbenchError("This grader is closed: make a new one.")
        if self._process is None:
            self._process = self._popen()
            self._end = weakref.finalize(self, _end, self._process)
            if self._closed.is_set():  # meanwhile
                self._process.kill()
        return self._process

    def _popen(self) -> subprocess.Popen[bytes]:
        one = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}  # a buffer each, and nothing gained
        try:
            return subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, **one},
                start_new_session=True,  # Ctrl-C is for the trainer, which may have more to grade
            )
        except OSError as error:
            raise self._not_started(str(error)) from None

    def _is_ready(self, process: subprocess.Popen[bytes]) -> bool:
        """Wait for it; False when it ended before."""
        if not self._ready:
            with _deadline(process, BOOT_S):
                self._ready = _receive(process.stdout) is not None
        return self._ready

    def _not_started(self, what: str) -> WorkbenchError:
        return WorkbenchError(
            f"The process that grades submissions could not start ({what}): run `{' '.join(self._command)}` to see why."
        )

    def _drop(self) -> None:
        self._end()
        self._process, self._ready, self._end = None, False, lambda: None


@lru_cache(maxsize=1)
def shared() -> Grader:
    """The grader of whoever has none, for tasks that must not be graded in their process."""
    return Grader()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for stream in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):  # what was still to be sent
            stream.close()  # type: ignore[union-attr]
    process.wait()


@contextlib.contextmanager
def _deadline(process: subprocess.Popen[bytes], seconds: float) -> Iterator[threading.Event]:
    """Kills the process after so long; reading from it and writing to it end then. Yields the event that says so."""
    late = threading.Event()

    def stop() -> None:
        late.set()
        process.kill()

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    try:
        yield late
    finally:
        timer.cancel()


def _send(stream: IO[bytes], *messages: bytes) -> None:
    for message in messages:
        stream.write(_LENGTH.pack(len(message)))
        stream.write(message)
    stream.flush()


def _receive(stream: IO[bytes] | None) -> bytes | None:
    """One message; None at the end of the stream, also in its middle."""
    assert stream is not None
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    message = stream.read(length)
    return message if len(message) == length else None


# The worker


def main() -> None:
    """Answer questions until stdin ends."""
    questions, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    import sklearn.metrics  # noqa: F401

    ready_mb = _address_mb()
    _send(answers, b"ready")
    while (header := _receive(questions)) is not None and (submission := _receive(questions)) is not None:
        question = json.loads(header)
        signal.setitimer(signal.ITIMER_REAL, 2 * question["limit_s"])  # kills, should nobody else be there to do it
        _limit_memory(ready_mb, question["memory_mb"])
        answer = _judged(question, submission)
        signal.setitimer(signal.ITIMER_REAL, 0)
        _send(answers, json.dumps(answer).encode())


def _judged(question: dict[str, Any], submission: bytes) -> dict[str, Any]:
    try:
        return asdict(_task(question["folder"], question["repo"]).grade_here(submission, question["split"]))
    except MemoryError:
        return {"lost": "grading needed more memory than the grader may have."}
    except WorkbenchError as error:
        return {"mistake": str(error)}
    except Exception:
        return {"error": traceback.format_exc()}


_task = lru_cache(maxsize=None)(lambda folder, repo: load(Path(folder), repo))


def _address_mb() -> int | None:
    """Address space of this process, MB; None where there is no /proc."""
    import resource

    with contextlib.suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        return pages * resource.getpagesize() // 2**20
    return None


def _limit_memory(ready_mb: int | None, more_mb: int) -> None:
    """Lets this process have so much address space beyond what it had when it was ready."""
    import resource

    if ready_mb is not None:
        with contextlib.suppress(OSError, ValueError):  # a lower limit already
            _, hard = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, ((ready_mb + more_mb) * 2**20, hard))


if __name__ == "__main__":
    main()
