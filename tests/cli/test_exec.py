"""`workbench exec` on the real sandbox."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from workbench.cli.main import run_command

FIELDS = {"verdict", "exit_code", "signal", "cpu_s", "wall_s", "peak_mb", "stdout", "stderr", "truncated", "level"}


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    def _run(code: str, *options: str, stdin: str = "") -> tuple[int, dict]:
        (tmp_path / "program.py").write_text(code)
        (tmp_path / "in.txt").write_text(stdin)
        command = ["exec", str(tmp_path / "program.py"), "--stdin", str(tmp_path / "in.txt"), "--json", *options]
        status = run_command(command)
        return status, json.loads(capsys.readouterr().out)

    return _run


def test_a_program_reads_and_writes(run) -> None:
    status, result = run("print(input().upper())", stdin="hello\n")
    assert status == 0
    assert result["stdout"] == "HELLO\n"
    assert result["verdict"] == "ok"
    assert set(result) >= FIELDS
    assert result["level"] in "ABCDE"


def test_how_it_ended_is_told(run) -> None:
    status, result = run("import sys; print('x', file=sys.stderr); sys.exit(3)")
    assert (status, result["verdict"], result["exit_code"]) == (1, "runtime_error", 3)
    assert result["stderr"] == "x\n"
    status, result = run("import time; time.sleep(30)", "--wall", "1")
    assert (status, result["verdict"]) == (1, "timeout")
    assert result["wall_s"] < 2
    status, result = run("x = bytearray(10**9)", "--memory", "100")
    assert (status, result["verdict"]) == (1, "memory_limit")


def test_without_json_the_reason_is_told_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "slow.py"
    program.write_text("import time; print('begun', flush=True); time.sleep(30)")
    assert run_command(["exec", str(program), "--wall", "1"]) == 1
    said = capsys.readouterr()
    assert said.out == "begun\n"
    assert said.err.startswith("[timeout, ")
    assert said.err.endswith("]\nStopped after 1 s of wall time.\n")


def test_what_is_told_stands_on_a_line_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "brief.py"
    program.write_text("import sys; sys.stderr.write('no end of line')")
    assert run_command(["exec", str(program)]) == 0
    assert capsys.readouterr().err.startswith("no end of line\n[ok, ")


def test_a_program_is_run_in_the_encoding_it_declares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "old.py"
    program.write_bytes(b"# -*- coding: latin-1 -*-\nprint('caf\xe9')\n")
    assert run_command(["exec", str(program), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["stdout"] == "caf\u00e9\n"
    program.write_bytes(b"print('caf\xe9')\n")
    assert run_command(["exec", str(program), "--json"]) == 1
    assert "SyntaxError" in json.loads(capsys.readouterr().out)["stderr"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere.py"], "'nowhere.py' does not exist: expected a file."),
        (["/"], "'/' is a folder: expected a file."),
        ([__file__, "--cpu", "-1"], "cpu_s=-1.0 is not accepted"),
        ([__file__, "--stdin", "nowhere.txt"], "'nowhere.txt' does not exist: expected a file."),
    ],
)
def test_mistakes_are_one_sentence(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["exec", *arguments]) == 1
    err = capsys.readouterr().err
    assert err.startswith(sentence)
    assert err.count("\n") == 1
