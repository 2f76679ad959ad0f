"""The examples of README on the executor and on judging run as they stand, in their order."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from typing import Any

import pytest

from workbench.config import ROOT


def test_the_examples_of_the_executor_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    text = (ROOT / "README.md").read_text()
    section = text[text.index("**Run code yourself**") : text.index("## A run is a folder")]
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len(blocks) == 3
    names: dict[str, Any] = {}
    for block in blocks:
        outcome = eval(compile(block, "README.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
        if inspect.iscoroutine(outcome):
            asyncio.run(outcome)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("ok (")
    assert printed[-2:] == ["", "ok"]
    assert "hello" in printed
    assert [result.stdout for result in names["results"]] == [f"{n**2}\n" for n in range(8)]
