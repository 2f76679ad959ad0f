from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.sandbox import workfolder


def test_two_executors_may_sweep_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one has listed, the other may have removed by the time it is looked at."""
    monkeypatch.setattr(workfolder.tempfile, "gettempdir", lambda: str(tmp_path))
    gone = 2**22 + 1  # above any process id
    for number in range(3):
        (tmp_path / f"{workfolder._prefix()}{gone}-{number}").mkdir()
    ours = tmp_path / f"{workfolder._prefix()}{os.getpid()}-x"
    ours.mkdir()

    def remove_all(_: Path) -> None:
        for folder in tmp_path.glob(f"*{gone}*"):
            shutil.rmtree(folder)

    monkeypatch.setattr(workfolder, "remove", remove_all)
    workfolder.sweep()
    assert list(tmp_path.iterdir()) == [ours]


LATE = """
import threading
from workbench.sandbox import isolation
from workbench.sandbox.executor import Executor, Request

without = isolation.probe(("namespaces",))
isolation.require = lambda *_, **__: without
executor = Executor(workers=1).start()
run = executor.submit(Request(code="import time; time.sleep(1); print(7)"))

def wait():
    print(run.result(30).stdout, end="", flush=True)
    executor.close()

threading.Thread(target=wait).start()  # the main thread ends here
"""


def test_a_run_is_not_lost_when_the_main_thread_ends_before_it() -> None:
    """Its folder cannot be removed by a pool then: pools take no more work."""
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("7\n", 0), done.stderr
