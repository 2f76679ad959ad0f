from __future__ import annotations

import json
from pathlib import Path

import pytest

from workbench.cli.doctor import Problems, _path
from workbench.cli.main import run_command


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


def test_a_path_is_judged_by_its_first_parent_that_exists(tmp_path: Path) -> None:
    problems = Problems()
    assert _path("runs", tmp_path / "a" / "b", problems)["writable"] is True
    assert not (tmp_path / "a").exists()
    assert _path("out", Path("/proc/none"), problems)["writable"] is False
    assert "'/proc/none' cannot be written" in problems.errors[0]
