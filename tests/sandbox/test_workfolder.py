from __future__ import annotations

import os
import shutil
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
