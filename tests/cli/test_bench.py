"""`workbench bench`: the names that others rely on, measured for real with one round."""

from __future__ import annotations

import json

import pytest

from workbench.cli.bench import Measured, ratio
from workbench.cli.main import run_command

NAMES = {
    "trivial_full_ms",
    "trivial_thin_ms",
    "trivial_cold_ms",
    "mljob_full_ms",
    "mljob_cold_ms",
    "runs_per_s_full",
    "runs_per_s_thin",
}

BUFFER_NAMES = {
    "choose64_ms",
    "choose64_small_ms",
    "choose64_ratio",
    "observe64_ms",
    "observe64_small_ms",
    "observe64_ratio",
    "add_per_s",
    "add_small_per_s",
    "fill_per_s",
    "resident_mb",
    "reopen_s",
}


def test_numbers_are_medians() -> None:
    measured = Measured([3.0, 1.0, 2.0], "ms").as_dict()
    assert measured == {"median": 2.0, "min": 1.0, "max": 3.0, "unit": "ms", "n": 3}
    assert ratio(Measured([10, 30, 20], "ms"), Measured([4, 5, 100], "ms")).values == [4.0]


def test_the_sandbox_is_measured_against_a_cold_python(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["bench", "sandbox", "--repeats", "1", "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert set(found["results"]) >= NAMES
    assert all(row["median"] > 0 for row in found["results"].values())
    assert found["results"]["trivial_ratio"]["median"] > 5, "starting from a zygote must pay"
    assert found["machine"]["isolation"] in "ABCD"
    assert "round 1 of 1" in captured.err


def test_the_buffer_is_measured_at_two_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["bench", "buffer", "--states", "20000", "--repeats", "4", "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert set(found["results"]) >= BUFFER_NAMES
    assert all(row["median"] > 0 for row in found["results"].values())
    assert found["results"]["choose64_ms"]["n"] == 4
    assert found["results"]["choose64_ratio"]["median"] < 5, "twenty times as many states"
    assert found["results"]["resident_mb"]["median"] < 40, "a script has 1.5 kB"
    assert 1200 < found["buffer"]["script_bytes"] < 1800
    assert found["buffer"]["snapshot_mb"] > 0.3, "snapshots are part of what is timed"
    assert 0 < found["buffer"]["snapshot_s"] < 10
    assert found["buffer"]["events_after_snapshot"] < 20000 / 3
    assert "20000 of 20000 states" in captured.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["buffer", "--prompts", "2"],
            "--prompts goes with a model, not with the buffer: leave it out, or measure a step.",
        ),
        (
            ["sandbox", "--states", "2000"],
            "--states goes with the buffer or the sampler, not with sandbox: leave it out.",
        ),
        (["buffer", "--states", "999"], "states=999 is not accepted: expected 1000 to 10000000."),
        (["buffer", "--states", "0"], "states=0 is not accepted: expected 1000 to 10000000."),
        (
            ["buffer", "--against", "trl"],
            "--against trl goes with a model: expected generation, training, step or all.",
        ),
        (
            ["sandbox", "--policy", "tiny"],
            "--policy goes with a model, not with the sandbox: leave it out, or measure a step.",
        ),
        (
            ["sandbox", "--prompts", "2"],
            "--prompts goes with a model, not with the sandbox: leave it out, or measure a step.",
        ),
        (["sandbox", "--repeats", "0"], "repeats=0 is not accepted: expected at least 1."),
    ],
)
def test_a_mistake_is_one_sentence(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["bench", *words]) == 1
    assert capsys.readouterr().err.strip().startswith(sentence)
