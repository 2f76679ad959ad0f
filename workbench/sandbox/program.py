"""How a locked-down process becomes a script: as `python script.py` would run it, from inside a warm interpreter.

Runs inside the sandbox: standard library only, no import of the workbench.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from types import FrameType, ModuleType, TracebackType
from typing import Any

SCRIPT = "script.py"


def fresh_main(folder: str) -> ModuleType:
    """A new `__main__` for a script in `folder`, with fresh standard streams, argv and import path."""
    module = ModuleType("__main__")
    vars(module).update(__file__=f"{folder}/{SCRIPT}", __builtins__=__builtins__, __annotations__={})
    globals()["_old_main"] = sys.modules["__main__"]  # its functions are still running
    sys.modules["__main__"] = module
    for name in ("family", "jail", "program"):
        sys.modules.pop(name, None)
    sys.argv[:] = [SCRIPT]
    sys.path[0:0] = [folder]
    sys.path[:] = [path for path in sys.path if path != os.path.dirname(__file__)]
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        errors = "backslashreplace" if number == 2 else "surrogateescape"
        mode, buffering = "w" if number else "r", 1 if number == 2 else -1
        stream = open(number, mode, buffering, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return module


def seed_generators(seed: int) -> None:
    """Seed `random`, and `numpy.random` where it is preloaded."""
    import random

    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


def set_threads(threads: int) -> None:
    """Let native code (BLAS, OpenMP) use this many threads."""
    if threads == 1:
        return  # so the zygote was started
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
    if "threadpoolctl" in sys.modules:
        sys.modules["threadpoolctl"].threadpool_limits(threads)


def become(source: bytes, module: ModuleType) -> None:
    """Run the script as `python script.py` would: its traceback, its exit code, its exit handlers. Never returns."""
    code, interrupted = 0, False
    try:
        exec(compile(source, SCRIPT, "exec", dont_inherit=True), vars(module))
    except SystemExit as error:
        code = _exit_code(error)
    except BaseException as error:
        interrupted, code = isinstance(error, KeyboardInterrupt), 1
        trace = error.__traceback__
        _report(error, trace.tb_next if trace else None)
    code = _finish(code, module)
    if interrupted:  # as the interpreter does
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code)


def _report(error: BaseException, trace: TracebackType | None) -> None:
    while trace is not None and _ours(trace.tb_frame):
        trace = trace.tb_next
    error.__traceback__ = trace
    _flush(sys.stdout)
    try:
        sys.excepthook(type(error), error, trace)
    except BaseException:
        sys.__excepthook__(type(error), error, trace)


def _ours(frame: FrameType) -> bool:
    return os.path.dirname(frame.f_code.co_filename) == os.path.dirname(__file__)


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF if -(2**63) <= error.code < 2**63 else 0xFF
    _flush(sys.stdout)
    print(error.code, file=sys.stderr)
    return 1


def _finish(code: int, module: ModuleType) -> int:
    """The parts of the interpreter's shutdown that a script can notice; the rest would only copy shared pages."""
    import atexit

    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        vars(module).clear()  # closes and so flushes the files that the script left open
        gc.collect()
    except BaseException as error:
        _report(error, error.__traceback__)
    flushed = _flush(sys.stdout)
    _flush(sys.stderr)
    return code if flushed or code else 120


def _flush(stream: Any) -> bool:
    try:
        if stream is not None and not stream.closed:
            stream.flush()
    except BaseException:
        return False
    return True
