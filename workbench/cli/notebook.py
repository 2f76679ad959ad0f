"""A notebook run in batch by papermill, with what papermill leaves open closed.

Names and types of parameters are checked before anything runs; what the kernel prints is passed on as it comes, and a
sign of life every few seconds in between; a dead kernel and Ctrl-C end the call soon, with the cells so far kept.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from workbench.cli.common import Interrupted
from workbench.config import ROOT
from workbench.types import WorkbenchError
from workbench.views.parameters import parse, unknown
from workbench.views.progress import HEADLESS, duration

NOTEBOOKS = ROOT / "notebooks"
KERNEL = "python3"
LIFE_SIGN_S = 5.0
"""Longest silence on the terminal, in seconds."""
MAX_STREAM_LINES = 400
"""Lines kept of one stream of a cell in the executed notebook: the first and the last half of them."""


def run(name_or_path: str, parameters: Mapping[str, str], out: Path, *, terminal: TextIO | None = None) -> Path:
    """Execute a notebook with papermill in the caller's working directory; return the executed copy in folder `out`.

    `parameters` are texts from the command line, read as the types that the notebook declares. Raises WorkbenchError,
    in one sentence, for an unknown notebook or parameter, a wrong type, the notebook's own folder as `out`, an error in
    a cell, and a kernel that died; Interrupted at Ctrl-C (SIGTERM too), which interrupts the running cell; the second
    one kills the kernel.
    """
    source = find(name_or_path)
    values = typed_parameters(source, parameters)
    target = out / source.name
    if target.exists() and target.samefile(source):
        raise WorkbenchError(f"'{out}' is the folder of {source.name} itself: choose another folder with --out.")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WorkbenchError(
            f"'{out}' cannot be written ({error.strerror}): choose another folder with --out."
        ) from None
    terminal = terminal or sys.stdout
    print(f"running {source} → {target}", file=terminal, flush=True)
    call = _Call(source, target, values, terminal)
    try:
        call.execute()
    except BaseException:
        with suppress(Exception):  # a full disk, say, leaves half a notebook, and its error is the one to tell
            tidy(target)
        raise
    tidy(target)
    return target


def split_parameters(pairs: Iterable[str]) -> dict[str, str]:
    """`["steps=20"]` → `{"steps": "20"}`. Raises WorkbenchError for one without a value, and for one given twice."""
    values: dict[str, str] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator:
            raise WorkbenchError(f"-p {name} has no value: expected -p key value, for example -p steps 20.")
        if name in values:
            raise WorkbenchError(f"-p {name} is given twice, last with '{value}': leave one of them out.")
        values[name] = value
    return values


def find(name_or_path: str) -> Path:
    """A notebook by path, by name (`04_training`), or by its number (`04`)."""
    path = Path(name_or_path)
    if path.suffix == ".ipynb":
        if path.is_file():
            return path
        raise WorkbenchError(f"'{path}' is no file: expected a notebook (.ipynb) or one of {', '.join(_names())}.")
    names = _names()
    matches = [name for name in names if name == name_or_path or name.split("_")[0] == name_or_path]
    if len(matches) != 1:
        raise WorkbenchError(unknown(name_or_path, names, "notebook"))
    return NOTEBOOKS / f"{matches[0]}.ipynb"


def typed_parameters(notebook: Path, parameters: Mapping[str, str]) -> dict[str, Any]:
    """The given texts as the types that the notebook's `parameters` cell declares."""
    declared = declared_parameters(notebook)
    values = {}
    for name, text in parameters.items():
        if name not in declared:
            raise WorkbenchError(unknown(name, declared, f"parameter of {notebook.name}"))
        values[name] = parse(name, str(text), declared[name])
    return values


def declared_parameters(notebook: Path) -> dict[str, str]:
    """Name → type of each parameter that a notebook declares."""
    import papermill

    with _quiet():
        try:
            declared = papermill.inspect_notebook(str(notebook))
        except Exception as error:  # nbformat raises several kinds
            raise WorkbenchError(f"'{notebook}' cannot be read as a notebook: {_first_line(error)}.") from None
    return {name: str(parameter["inferred_type_name"]) for name, parameter in declared.items()}


class _Call:
    """One execution: the kernel that signals reach, and the terminal that output and life signs go to."""

    def __init__(self, source: Path, target: Path, values: Mapping[str, Any], terminal: TextIO) -> None:
        self.source, self.target, self.values, self.terminal = source, target, values, terminal
        self.manager: Any = None
        self.signals: list[int] = []
        self.started = self.last_output = time.monotonic()
        self.cell = 0

    def execute(self) -> None:
        import papermill
        from nbclient.exceptions import DeadKernelError
        from papermill.exceptions import PapermillExecutionError

        try:
            with _quiet(), self._life_signs(), _environment(), _event_loop():
                papermill.execute_notebook(
                    str(self.source),
                    str(self.target),
                    parameters=dict(self.values),
                    kernel_name=KERNEL,
                    cwd=os.getcwd(),
                    progress_bar=False,
                    stdout_file=self,
                    stderr_file=self,
                    autosave_cell_every=10,
                    extra_arguments=["--log-level=ERROR"],
                    kernel_manager_class=self._manager_class(),
                    on_cell_start=self._on_cell_start,
                )
        except PapermillExecutionError as error:
            self._raise_interrupt()
            raise WorkbenchError(
                f"Cell {error.exec_count} of {self.source.name} failed with {error.ename}: "
                f"{_first_line(error.evalue)} (see {self.target})"
            ) from None
        except (DeadKernelError, RuntimeError) as error:
            self._raise_interrupt()
            if not isinstance(error, DeadKernelError) and "Kernel" not in str(error):
                raise
            raise WorkbenchError(
                f"The kernel of {self.source.name} died in cell {self.cell} (killed, or out of memory): "
                f"the cells before it are in {self.target}."
            ) from None
        except KeyboardInterrupt:
            self.signals.append(signal.SIGINT)
            self._raise_interrupt()

    def _manager_class(self) -> type:
        """A kernel manager that papermill's client makes, uses and closes, and that the signal handler knows."""
        from jupyter_client.manager import AsyncKernelManager

        call = self

        class Manager(AsyncKernelManager):
            def __init__(self, **settings: Any) -> None:
                super().__init__(**settings)
                call.manager = self

        return Manager

    def _on_cell_start(self, cell: Any, cell_index: int) -> None:
        """Runs in the event loop of the client, whose own handler would kill the kernel at the first signal."""
        if cell.cell_type == "code":
            self.cell += 1
        loop = asyncio.get_running_loop()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: int) -> None:
        self.signals.append(number)
        action = self.manager.interrupt_kernel() if len(self.signals) == 1 else self.manager.shutdown_kernel(now=True)
        self._pending = asyncio.ensure_future(action)

    def _raise_interrupt(self) -> None:
        if self.signals:
            raise Interrupted(f"Interrupted: what ran until then is in {self.target}.", self.signals[0])

    # papermill writes the kernel's streams here
    def write(self, text: str) -> int:
        self.last_output = time.monotonic()
        return self.terminal.write(text)

    def flush(self) -> None:
        self.terminal.flush()

    @contextmanager
    def _life_signs(self) -> Iterator[None]:
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(0.5):
                if time.monotonic() - self.last_output >= LIFE_SIGN_S - 0.5:
                    self.write(f"… cell {self.cell} running, {duration(time.monotonic() - self.started)}\n")
                    self.flush()

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def tidy(notebook: Path) -> None:
    """Drop widget state and the middle of overlong streams from an executed notebook, in place."""
    import nbformat

    if not notebook.is_file():
        return
    content = nbformat.read(notebook, as_version=4)
    content.metadata.pop("widgets", None)
    for cell in content.cells:
        for output in cell.get("outputs", ()):
            if output.output_type == "stream":
                output.text = shorten(output.text)
    temporary = notebook.with_suffix(".tmp")
    nbformat.write(content, temporary)
    temporary.replace(notebook)


def shorten(text: str, limit: int = MAX_STREAM_LINES) -> str:
    """The first and last lines of a long text, with a note of how many are missing between them."""
    lines = text.splitlines(keepends=True)
    if len(lines) <= limit:
        return text
    half = limit // 2
    return "".join([*lines[:half], f"… {len(lines) - 2 * half} lines left out …\n", *lines[-half:]])


def _names() -> list[str]:
    return sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))


def _first_line(error: object) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@contextmanager
def _environment() -> Iterator[None]:
    """Variables the kernel inherits: no widgets, and kernels of this environment before those of the user."""
    added = {HEADLESS: "1", "JUPYTER_PREFER_ENV_PATH": "1", "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    kept = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, value in kept.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _event_loop() -> Iterator[None]:
    """The loop that papermill's client runs in, closed afterwards unless it was running before (in a notebook)."""
    from jupyter_core.utils import ensure_event_loop

    loop = ensure_event_loop()
    try:
        yield
    finally:
        if not loop.is_running():
            loop.close()


@contextmanager
def _quiet() -> Iterator[None]:
    """papermill's and the kernel client's log lines are not for the user of this command."""
    import logging

    loggers = [logging.getLogger(name) for name in ("papermill", "papermill.translators", "traitlets")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
