"""`workbench exec` on the real sandbox."""

from __future__ import annotations

import json
import os
import pty
import select
import sys
import tty
from pathlib import Path

import pytest

from workbench.cli.exec import readable
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
    _, result = run("import sys; sys.stdout.buffer.write(b'\\xff')")
    assert result["stdout"] == "\ufffd", "JSON has text only"


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


HOSTILE = "\x1b]0;title\a\x1b]52;c;aGk=\a\x1b[2J\x9b2Jé\r\n\tx\u202e\u2066\u200f".encode() + b"\xff\0"
HARMLESS = (r"\x1b]0;title\x07\x1b]52;c;aGk=\x07\x1b[2J\x9b2Jé\r" + "\n\tx" + r"\u202e\u2066\u200f\xff\x00").encode()


@pytest.fixture
def hostile(tmp_path: Path) -> str:
    """A program that writes to both streams, and whose last line is the reason why it failed."""
    program = tmp_path / "hostile.py"
    lines = (f"for s in (sys.stdout, sys.stderr): s.buffer.write({HOSTILE!r})", r"sys.exit('\n\x1b[2Jend')")
    program.write_text("\n".join(("import sys", *lines)))
    return str(program)


@pytest.mark.parametrize("seen", ["stdout", "stderr"])
def test_a_terminal_is_shown_what_a_pipe_is_given(
    hostile: str, seen: str, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Each stream by itself: the other one is no terminal."""
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    with open(ours, "rb", buffering=0) as screen, open(theirs, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, seen, terminal)
        assert run_command(["exec", hostile]) == 1
        shown = b""
        while select.select([screen], [], [], 0.2)[0]:
            shown += screen.read(65536)
    told = dict(zip(("stdout", "stderr"), capsysbinary.readouterr(), strict=True))
    assert told[seen] == b""
    told[seen] = shown
    written = {name: HARMLESS if name == seen else HOSTILE for name in told}
    assert told["stdout"] == written["stdout"]
    assert told["stderr"].startswith(written["stderr"] + b"\n")
    reason = rb"\x1b[2Jend" if seen == "stderr" else b"\x1b[2Jend"
    end = told["stderr"].removeprefix(written["stderr"] + b"\n")
    assert end.startswith(reason + b"\n[runtime_error, ")
    assert end.endswith(b"]\n" + reason + b"\n")


def test_a_terminal_of_another_encoding_is_written_to(hostile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    with open(theirs, "w", encoding="ascii") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        assert run_command(["exec", hostile]) == 1
        assert os.read(ours, 65536) == HARMLESS.replace("é".encode(), rb"\xe9")
    os.close(ours)


def test_only_what_acts_on_a_terminal_is_written_otherwise() -> None:
    acting = {*range(9), *range(11, 32), *range(0x7F, 0xA0), 0x61C, 0x200E, 0x200F}
    acting |= {*range(0x202A, 0x202F), *range(0x2066, 0x206A)}
    for code in range(0x3000):
        text = readable(f"a{chr(code)}b".encode())
        assert (text == f"a{chr(code)}b") == (code not in acting), hex(code)
        assert code not in acting or text.isprintable()


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
