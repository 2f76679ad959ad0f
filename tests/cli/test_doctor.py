from __future__ import annotations

import json
from pathlib import Path

import pytest

from workbench.cli.doctor import Problems, _path, _places
from workbench.cli.main import run_command
from workbench.sandbox.isolation import BEST, Isolation
from workbench.sandbox.outer import Means


def test_doctor_tells_the_machine_as_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    status = run_command(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert status == (0 if found["ok"] else 1)
    assert found["ok"] is (found["errors"] == [])
    assert found["device"]["auto"] in ("cpu", "cuda", "mps")
    assert found["device"]["faster"] in found["device"]["probe_ms"]
    assert found["isolation"]["level"] in "ABCDE"
    assert found["machine"]["cpus"] >= 1
    assert found["versions"]["torch"]
    assert {place["name"] for place in found["paths"]} == {"runs", "out", "temporary"}


def test_doctor_shows_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    run_command(["doctor"])
    out = capsys.readouterr().out
    for word in ("isolation", "level", "dtype probe", "writable", "A run c"):
        assert word in out


@pytest.mark.parametrize("level", list("BCDE"))
def test_the_level_is_told_with_its_meaning(
    level: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = Isolation(level, ("one, or two", "three"), (), Means("none", 0, False))
    monkeypatch.setattr("workbench.sandbox.isolation.probe", lambda **_: found)
    monkeypatch.setenv("COLUMNS", "300")
    run_command(["doctor"])
    out = capsys.readouterr().out
    assert f"level {level} (" in out
    assert "the best there is" in out if level == BEST else f"the best{',' if level == 'C' else ' is'} {BEST}" in out
    assert "one, or two; three; " in out
    assert ("nothing stronger is offered" in out) is (level == BEST)


def test_a_path_is_judged_by_its_first_parent_that_exists(tmp_path: Path) -> None:
    problems = Problems()
    assert _path("runs", tmp_path / "a" / "b", problems)["writable"] is True
    assert not (tmp_path / "a").exists()
    assert problems.errors == []


@pytest.mark.parametrize(
    ("name", "errors", "remedy"), [("runs", 1, "--run DIR"), ("out", 0, "--out DIR"), ("temporary", 1, "set TMPDIR")]
)
def test_a_place_that_cannot_be_written_has_its_own_remedy(name: str, errors: int, remedy: str) -> None:
    problems = Problems()
    assert _path(name, Path("/proc/none"), problems)["writable"] is False
    assert len(problems.errors) == errors
    sentence = (problems.errors + problems.warnings)[0]
    assert "'/proc/none' cannot be written" in sentence
    assert remedy in sentence


def test_no_place_for_temporary_files_is_told_and_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.setattr("tempfile.gettempdir", none)
    monkeypatch.setenv("TMPDIR", "/proc/none")
    assert _places()["temporary"] == Path("/proc/none")
