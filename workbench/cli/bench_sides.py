"""Two processes that take turns: while one is measured, the other waits for its next message and computes nothing.

Each reports its own times and its own peak memory, which is why they are processes.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from workbench.cli.bench_work import Workload
from workbench.types import WorkbenchError

Serve = Callable[[Connection, Workload], None]
"""The body of a side: sends what it is, then answers each message until None comes."""


class Side:
    """The measuring process's end of one side."""

    def __init__(self, pipe: Connection, name: str) -> None:
        self.pipe, self.name = pipe, name
        self.facts: dict[str, Any] = self._answer()

    def ask(self, **message: Any) -> dict[str, Any]:
        """Do what the message says, and return its measurements."""
        self.pipe.send(message)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        try:
            kind, value = self.pipe.recv()
        except EOFError:
            raise WorkbenchError(
                f"the process of {self.name} has ended without an answer, as when memory runs out: "
                "take a smaller workload."
            ) from None
        if kind == "refused":
            raise WorkbenchError(value)
        if kind == "failed":
            raise RuntimeError(f"in the process of {self.name}:\n{value}")
        return dict(value)


@contextmanager
def side(serve: Serve, work: Workload, name: str) -> Iterator[Side]:
    """A process that serves `work`, ended on exit."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_run, args=(serve, theirs, work), daemon=True)
    process.start()
    theirs.close()
    try:
        opened = Side(ours, name)
        yield opened
        ours.send(None)
        process.join(5)
    finally:
        ours.close()
        process.kill()
        process.join()


def _run(serve: Serve, pipe: Connection, work: Workload) -> None:
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # stdout belongs to the result
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    try:
        serve(pipe, work)
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        pass  # the measuring process has gone
    except WorkbenchError as error:
        pipe.send(("refused", str(error)))
    except BaseException:
        pipe.send(("failed", traceback.format_exc()))


def _end_with_the_parent() -> None:
    """Nobody waits for the result of a process whose parent was killed: what it computes may take minutes."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


# --- memory of this process


def reset_peak() -> None:
    """Forget the peak so far; where the kernel does not allow it, the peak counts from the start of the process."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_mb() -> float:
    """Most resident memory since the last reset, in MB; on a GPU, most memory allocated there."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e6
    return _status_kb("VmHWM") * 1024 / 1e6


def resident_mb() -> float:
    """Resident memory now, in MB."""
    return _status_kb("VmRSS") * 1024 / 1e6


def memory_mb() -> float:
    """All the memory that there is for models, in MB, less a tenth for all else."""
    import psutil
    import torch

    if torch.cuda.is_available():
        return 0.9 * torch.cuda.get_device_properties(0).total_memory / 1e6
    return 0.9 * psutil.virtual_memory().total / 1e6


def _status_kb(field: str) -> float:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        import resource

        return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def settled() -> None:
    """Wait for what has been queued on a GPU: before a clock is read."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
