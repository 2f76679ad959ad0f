"""`workbench exec` on the real sandbox."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import tty
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest
import typer

from workbench.cli.exec import _AMOUNTS, readable
from workbench.cli.main import app, run_command
from workbench.sandbox.executor import Limits

FIELDS = {"verdict", "exit_code", "signal", "cpu_s", "wall_s", "peak_mb", "stdout", "stderr", "truncated", "level"}
FIELDS |= {"reason", "refused", "hint", "submission_bytes", "save"}


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


def test_an_error_is_told_once_and_little_memory_is_not_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "fails.py"
    program.write_text("raise ValueError('bad')")
    assert run_command(["exec", "--thin", str(program)]) == 1
    said = capsys.readouterr().err
    assert said.count("ValueError: bad") == 1
    assert said.splitlines()[-2] == "ValueError: bad"
    assert ", under 1 MB beyond Python's own, isolation" in said.splitlines()[-1]
    program.write_text("import sys; sys.exit(3)")
    assert run_command(["exec", "--thin", str(program)]) == 1
    assert capsys.readouterr().err.endswith("]\nEnded with exit code 3.\n"), "what stands nowhere else is told"
    program.write_text("held = bytearray(20 * 2**20)")
    assert run_command(["exec", "--thin", str(program)]) == 0
    assert ", 20 MB beyond Python's own, " in capsys.readouterr().err


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


def _piped(given: int | IO[bytes], *words: str) -> str:
    """What `workbench exec` prints of what it finds on its own stdin."""
    command = [sys.executable, "-m", "workbench", "exec", "--thin", *words]
    return subprocess.run(command, stdin=given, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout


def test_what_is_piped_in_is_read(tmp_path: Path) -> None:
    (tmp_path / "given").write_text("4 5")
    (tmp_path / "echo.py").write_text("import sys; print(repr(sys.stdin.read()))")
    program = str(tmp_path / "echo.py")
    for words in ((program,), (program, "--stdin", "-")):
        with (tmp_path / "given").open("rb") as file:
            assert _piped(file, *words) == "'4 5'\n"
    ours, theirs = os.pipe()
    os.write(theirs, b"6")
    os.close(theirs)
    assert _piped(ours, program) == "'6'\n"
    os.close(ours)


def test_nobody_is_waited_for_at_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "echo.py").write_text("import sys; print(repr(sys.stdin.read()))")
    ours, theirs = pty.openpty()
    assert _piped(theirs, str(tmp_path / "echo.py")) == "''\n"
    assert _piped(subprocess.DEVNULL, str(tmp_path / "echo.py")) == "''\n"
    os.close(ours)
    os.close(theirs)


def test_the_file_that_it_writes_is_kept_or_told_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], run: Callable[..., tuple[int, dict[str, Any]]]
) -> None:
    code, kept = "open('submission.csv', 'w').write('a,b')", tmp_path / "kept.csv"
    (tmp_path / "writes.py").write_text(code)
    assert run_command(["exec", str(tmp_path / "writes.py"), "--thin"]) == 0
    assert capsys.readouterr().err.endswith(
        "submission.csv (3 bytes) is gone with the sandbox: --save FILE keeps it.\n"
    )
    status, result = run(code, "--thin", "--save", str(kept))
    assert (status, result["submission_bytes"], kept.read_text()) == (0, 3, "a,b")
    status, result = run("pass", "--thin", "--save", str(tmp_path / "none.csv"))
    assert (status, result["verdict"], result["submission_bytes"]) == (1, "ok", None)
    assert not (tmp_path / "none.csv").exists()


def test_it_sees_a_folder_and_has_the_limits_asked_for(
    tmp_path: Path, run: Callable[..., tuple[int, dict[str, Any]]]
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("seen")
    tmp_path.chmod(0o755)
    status, result = run("print(open('input/a.csv').read())", "--thin", "--input", str(tmp_path / "in"))
    assert (status, result["stdout"]) == (0, "seen\n")
    _, result = run("print('x' * 5000)", "--thin", "--output", "2")
    assert result["verdict"] == "output_limit"
    _, result = run("open('a', 'wb').write(bytes(3 * 2**20))", "--thin", "--disk", "1")
    assert (result["verdict"], result["submission_bytes"]) == ("runtime_error", None)
    many = "import threading as t\nfor _ in range(9): t.Thread(target=t.Event().wait, args=(1,)).start()"
    _, result = run(many, "--thin", "--processes", "4")
    assert "can't start new thread" in result["stderr"]


def test_thin_has_nothing_preloaded(run: Callable[..., tuple[int, dict[str, Any]]]) -> None:
    code = "import sys; print('pandas' in sys.modules)"
    assert run(code)[1]["stdout"] == "True\n"
    assert run(code, "--thin")[1]["stdout"] == "False\n"


def test_that_it_was_the_sandbox_is_told(run: Callable[..., tuple[int, dict[str, Any]]]) -> None:
    _, result = run("import socket; socket.getaddrinfo('example.org', 80)", "--thin")
    assert result["hint"] == "The sandbox has no network."
    _, result = run("import socket; socket.create_connection(('10.1.1.1', 80))", "--thin")
    assert result["refused"]
    assert result["hint"].startswith("The sandbox does not permit this: it has no network, ")
    _, result = run("raise ValueError", "--thin")
    assert (result["refused"], result["hint"]) == (False, None)


def test_what_is_not_said_is_as_for_the_executor() -> None:
    command = typer.main.get_command(app).commands["exec"]
    given = {option.name: option.default for option in command.params}
    limits = {_AMOUNTS[name]: value for name, value in given.items() if name in _AMOUNTS}
    assert len(limits) == len(_AMOUNTS)
    assert Limits(**limits) == Limits()


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
    assert end.count(reason) == 1, "it stands above, as the last line of stderr"


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
        ([__file__, "--cpu", "0"], "--cpu 0.0 is not accepted: expected a number above 0, at most 1000000000; give"),
        ([__file__, "--disk", "2000000000"], "--disk 2000000000 is not accepted: expected a number above 0, at most"),
        (
            [__file__, "--wall", "nan"],
            "--wall nan is not accepted: expected a number above 0, at most 1000000000; give",
        ),
        ([__file__, "--input", __file__], f"--input '{__file__}' is no folder: give the folder that"),
        ([__file__, "--save", "nowhere/x.csv"], "--save 'nowhere/x.csv' cannot be written: give the name of a file"),
        ([__file__, "--save", "/"], "--save '/' cannot be written: give the name of a file in a folder that exists."),
        ([__file__, "--min-level", "X"], "min_level='X' is not accepted: expected A, B, C, D or E."),
        (["nowhere.py"], "'nowhere.py' does not exist: expected a file."),
        (["/"], "'/' is a folder: expected a file."),
        ([__file__, "--stdin", "nowhere.txt"], "'nowhere.txt' does not exist: expected a file."),
    ],
)
def test_mistakes_are_one_sentence(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["exec", *arguments]) == 1
    err = capsys.readouterr().err
    assert err.startswith(sentence)
    assert err.count("\n") == 1
