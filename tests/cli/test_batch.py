"""Batches of real processes: small notebooks, and the trainer ended by SIGKILL."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from workbench.cli.batch import batch
from workbench.cli.common import last_json
from workbench.cli.sweep import read_sweep
from workbench.config import ROOT
from workbench.folder import Lock
from workbench.run import Run
from workbench.types import WorkbenchError

NOTEBOOK = """
import json, pathlib, time
from workbench.views.parameters import check_parameters
check_parameters(globals())
with open(pathlib.Path(folder) / "started", "a") as file:
    print(seed, file=file)
time.sleep(seconds)
assert seed != 2 or (pathlib.Path(folder) / "mended").exists(), "a bad seed"
print(json.dumps({"valid_before": 0.25, "valid_after": seed / 4}))
"""


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Two seeds of a notebook that notes its starts and fails with the second, until there is a file `mended`."""
    book = new_notebook(metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}})
    declared = f'folder: str = "{tmp_path}"\nseconds: float = 0.0\nseed: int = 0\npreset: str = "default"'
    book.cells = [new_code_cell(declared, metadata={"tags": ["parameters"]}), new_code_cell(NOTEBOOK)]
    nbformat.write(book, tmp_path / "book.ipynb")
    file = tmp_path / "sweep.yaml"
    file.write_text(f"notebook: {tmp_path / 'book.ipynb'}\nseeds: [1, 2]\nparallel: 2\n")
    return file


def command(file: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "workbench", "batch", str(file), "--out", str(file.parent / "out"), "--json", *words]


def run(file: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(file, *words), capture_output=True, text=True, timeout=170)


def started(file: Path) -> list[str]:
    found = file.parent / "started"
    return sorted(found.read_text().split()) if found.exists() else []


def wait_until(done: Callable[[], object], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not done():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def table(file: Path) -> pd.DataFrame:
    return pd.read_csv(file.parent / "out" / "summary.csv")


def test_runs_that_are_done_are_not_run_again_and_failed_ones_twice(sweep: Path) -> None:
    done = run(sweep, "--copy-to", str(sweep.parent / "kept" / "copy.csv"))
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["runs"], found["done"], found["left"]) == (2, 1, [])
    assert "a bad seed" in found["failed"][0]["reason"]
    assert started(sweep) == ["1", "2", "2"]
    rows = table(sweep).set_index("seed")
    assert rows["status"].to_dict() == {1: "done", 2: "failed"}
    assert rows["valid_after"][1] == 0.25
    assert (sweep.parent / "kept" / "copy.csv").read_text() == (sweep.parent / "out" / "summary.csv").read_text()
    assert "a bad seed" in (sweep.parent / "out" / "summary.html").read_text()
    (sweep.parent / "mended").touch()
    again = run(sweep)
    assert again.returncode == 0, again.stderr
    assert started(sweep) == ["1", "2", "2", "2"]
    assert table(sweep)["status"].tolist() == ["done", "done"]


def test_a_folder_belongs_to_one_batch(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    lock = Lock(tmp_path / "out")
    refused = run(trainer_sweep(tmp_path, [0]))
    lock.release()
    assert refused.returncode == 1
    assert f"is being written by process {os.getpid()}" in refused.stderr
    assert refused.stdout == ""
    assert [path.name for path in (tmp_path / "out" / "runs").iterdir()] == []


def test_no_run_starts_after_the_time_limit(tmp_path: Path) -> None:
    done = run(file := trainer_sweep(tmp_path, [0, 1]), "--time-limit", "0")
    assert done.returncode == 1
    assert len(json.loads(done.stdout)["left"]) == 2
    assert "2 runs are left" in done.stderr
    assert table(file)["status"].tolist() == ["left", "left"]
    changed = run(trainer_sweep(tmp_path, [1, 2]), "--time-limit", "0")
    assert "the sweep is not the one that this folder was started with: 1 runs are new" in changed.stderr


@pytest.mark.slow
def test_a_run_that_takes_too_long_is_stopped(sweep: Path) -> None:
    sweep.write_text(sweep.read_text().replace("[1, 2]", "[1]") + "parameters: {seconds: 100}\nlimit_s: 8\n")
    done = run(sweep)
    assert done.returncode == 1
    assert json.loads(done.stdout)["failed"][0]["reason"] == "took longer than limit_s=8"
    assert started(sweep) in (["1"], []), "it is not tried again"


def test_ctrl_c_ends_the_batch_and_its_runs(sweep: Path) -> None:
    sweep.write_text(sweep.read_text() + "parameters: {seconds: 100}\n")
    process = subprocess.Popen(command(sweep), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: len(started(sweep)) == 2, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out == ""
    assert f"batch {sweep} --out {sweep.parent / 'out'}" in err.splitlines()[-1]
    assert "Traceback" not in err
    assert table(sweep)["status"].tolist() == ["left", "left"], "broken off, not failed"
    noted = [float(file.read_text()) for file in (sweep.parent / "out" / "logs").glob("*.seconds")]
    assert len(noted) == 2
    assert min(noted) > 0


SETTINGS = {"steps": 2, "groups": 1, "group_size": 2, "eval_drafts": 2, "eval_every": 1, "eval_every_drafts": 2}


def trainer_sweep(folder: Path, seeds: Sequence[int]) -> Path:
    file = folder / "sweep.yaml"
    file.write_text(f"trainer: true\nparameters: {json.dumps({**SETTINGS, 'threads': 1})}\nseeds: {list(seeds)}\n")
    return file


def timeless(path: Path) -> pd.DataFrame:
    metrics = Run(path).metrics()
    return metrics[[name for name in metrics if not name.startswith(("seconds", "at", "tokens_per_s", "cpu_s"))]]


@pytest.mark.slow
def test_a_batch_of_the_trainer_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    """SIGKILL at the first checkpoint: the run saves itself, and is gone on with as `workbench resume` does."""
    file = trainer_sweep(tmp_path, [3])
    process = subprocess.Popen(command(file), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    runs = tmp_path / "out" / "runs"
    wait_until(lambda: list(runs.glob("*/latest")), process)
    (run_folder,) = (path.parent for path in runs.glob("*/latest"))
    process.kill()
    process.communicate()
    (tmp_path / "out" / "logs" / f"{run_folder.name}.seconds").write_text("1000.0\n")
    done = run(file)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["done"] == 1
    kept = json.loads((tmp_path / "out" / "results" / f"{run_folder.name}.json").read_text())
    assert 1000 < kept["took_s"] < 1170, "the parts together"
    row = table(file).iloc[0]
    assert row["status"] == "done"
    assert row["executions"] == Run(run_folder).metrics()["executions"].sum()
    assert 0 <= row["area_valid"] <= 1
    assert row["area_executions"] == row["executions"]
    whole = tmp_path / "whole"
    words = [f"--set={name}={value}" for name, value in {**SETTINGS, "threads": 1, "seed": 3}.items()]
    alone = [sys.executable, "-m", "workbench", "train", "--run", str(whole), *words]
    assert subprocess.run(alone, capture_output=True, timeout=170).returncode == 0
    pd.testing.assert_frame_equal(timeless(run_folder), timeless(whole), check_exact=True)


@pytest.mark.slow
def test_the_smoke_sweep_runs_notebook_04(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "workbench", "batch", str(ROOT / "notebooks/sweeps/smoke.yaml"), "--out", "out"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=170, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = pd.read_csv(tmp_path / "out" / "summary.csv")
    assert rows["status"].tolist() == ["done", "done"]
    assert rows["steps"].tolist() == [1, 1]
    assert rows["executions"].notna().all()


RESULT = {"status": "done", "reason": None, "facts": {"steps": 2}, "curves": {"valid": [[0, 0.5], [4, 1]]}, "took_s": 3}


def test_what_was_kept_is_read_again(tmp_path: Path) -> None:
    file = trainer_sweep(tmp_path, [0])
    (tmp_path / "out" / "results").mkdir(parents=True)
    (job,) = read_sweep(file).jobs
    (tmp_path / "out" / "results" / f"{job.name}.json").write_text(json.dumps(RESULT))
    assert batch(file, tmp_path / "out", None, None)["done"] == 1
    assert table(file)["steps"].tolist() == [2]


@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", "{}", "[" * 200_000, '{"status": "done"}', "\xff"),
        *(
            json.dumps({**RESULT, **odd})
            for odd in (
                *({"status": "weird"}, {"took_s": "3"}, {"took_s": -1}, {"took_s": math.nan}, {"reason": 3}),
                *({"facts": []}, {"facts": {"steps": "2"}}, {"curves": [1]}, {"curves": {"valid": []}}),
                *({"curves": {"valid": [[0, 0.5]]}}, {"curves": {"valid": [[0, 0.5], [0, 1]]}}),
                *({"curves": {"valid": [0, 1]}}, {"curves": {"valid": [[0, None], [4, 1]]}}),
            )
        ),
    ],
)
def test_a_damaged_result_is_told(content: str, tmp_path: Path) -> None:
    file = trainer_sweep(tmp_path, [0])
    (tmp_path / "out" / "results").mkdir(parents=True)
    (job,) = read_sweep(file).jobs
    kept = tmp_path / "out" / "results" / f"{job.name}.json"
    kept.write_text(content, encoding="latin-1")
    with pytest.raises(WorkbenchError, match=r"is damaged, expected .*: remove it to run that again") as told:
        batch(file, tmp_path / "out", 0, None)
    assert str(kept) in str(told.value)
    assert len(str(told.value)) < 200 + len(str(kept))


@pytest.mark.parametrize("content", ["", "[]", "\xff"])
def test_a_damaged_list_of_runs_is_told(content: str, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "sweep.json").write_text(content, encoding="latin-1")
    with pytest.raises(WorkbenchError, match=r"sweep.json' is damaged, expected .*: remove it to go on"):
        batch(trainer_sweep(tmp_path, [0]), tmp_path / "out", 0, None)


@pytest.mark.parametrize(
    ("text", "found"), [('noise\n{"a": 1}\n', {"a": 1}), ("[1]\n", {}), ("", {}), ('{"a": 1}\nend', {})]
)
def test_the_summary_is_the_last_line(text: str, found: dict[str, int], tmp_path: Path) -> None:
    file = tmp_path / "x.out"
    file.write_text(text)
    assert last_json(file) == found
