"""What `make` takes from the command line and from nowhere else, what it removes, and what it tries once."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from workbench.config import ROOT

pytestmark = pytest.mark.skipif(not shutil.which("make"), reason="make is missing: install it")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The Makefile and an environment that is ready, so that nothing is installed."""
    folder = tmp_path / "checkout"
    (folder / ".venv" / "bin").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    for name in ("bin/python", ".base", ".test", ".dev", ".sandbox-tried"):
        (folder / ".venv" / name).touch()
    return folder


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """Programs that stand before, or for, those of the machine."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for name in ("make", "bash", "touch", "cat", "rm", "sh"):
        (folder / name).symlink_to(shutil.which(name) or name)
    return folder


def tool(folder: Path, name: str, body: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


def make(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        ["make", *words], cwd=folder, env={**kept, **environment}, capture_output=True, text=True, timeout=60
    )


NAMES = ("OUT", "STEPS", "SEED", "POLICY", "TASKS", "LOSS", "PARAMETERS", "PYTEST")


def test_nothing_comes_from_the_environment(checkout: Path) -> None:
    leaked = dict.fromkeys(NAMES, "leaked")
    for target in ("train", "test"):
        plain = make(checkout, "-n", target)
        assert plain.returncode == 0, plain.stderr
        assert make(checkout, "-n", target, **leaked).stdout == plain.stdout
    assert 'notebook 04_training --out "out"' in make(checkout, "-n", "train", **leaked).stdout


def test_the_command_line_is_passed_on_whole(checkout: Path) -> None:
    words = ["STEPS=3", "SEED=1", "POLICY=my model", "TASKS=a,b", "LOSS=gspo", "PARAMETERS=-p tau 2", "OUT=my out"]
    line = make(checkout, "-n", "train", *words).stdout
    expected = "-p tau 2 -p steps '3' -p seed '1' -p policy 'my model' -p tasks 'a,b' -p loss 'gspo'"
    assert f'notebook 04_training --out "my out" {expected}\n' in line
    assert "-k losses" in make(checkout, "-n", "test", "PYTEST=-k losses").stdout


def test_clean_removes_out_and_no_folder_of_the_user(checkout: Path) -> None:
    for name in ("out", "mine", "runs"):
        (checkout / name).mkdir()
        (checkout / name / "file").touch()
    for words, environment in ((["OUT=mine"], {}), ([], {"OUT": "mine"})):
        done = make(checkout, "clean", *words, **environment)
        assert done.returncode == 0, done.stderr
    assert (checkout / "mine" / "file").exists()
    assert (checkout / "runs" / "file").exists()
    assert (checkout / ".venv").exists()
    assert not (checkout / "out").exists()


def test_bubblewrap_is_tried_once(checkout: Path, tools: Path) -> None:
    (checkout / ".venv" / ".sandbox-tried").unlink()
    tool(tools, "apt-get", f"echo $1 >> {tools}/calls; echo no network >&2; exit 1")
    tool(tools, "id", "echo 0")
    tool(tools, "uname", "echo Linux")
    first, second = (make(checkout, "venv", PATH=str(tools)) for _ in range(2))
    assert (first.returncode, second.returncode) == (0, 0), first.stderr
    assert "bubblewrap could not be installed by apt-get (log: .venv/sandbox.log)." in first.stderr
    assert (checkout / ".venv" / "sandbox.log").read_text() == "no network\n"
    assert (tools / "calls").read_text() == "update\n"
    assert second.stderr == ""


@pytest.mark.parametrize(
    ("fails", "sentence"),
    [
        ("version_info", "is missing or older than Python 3.11"),
        ("ensurepip", "has no venv module: install it"),
        ("-m venv", "disk is full\n'python3 -m venv .venv' failed as said above"),
    ],
)
def test_why_there_is_no_venv_is_told(checkout: Path, tools: Path, fails: str, sentence: str) -> None:
    shutil.rmtree(checkout / ".venv")
    tool(tools, "python3", f'case "$*" in *"{fails}"*) echo disk is full >&2; exit 1;; esac')
    done = make(checkout, "venv", PATH=str(tools))
    assert done.returncode != 0
    assert sentence in done.stderr
    assert not (checkout / ".venv").exists()
