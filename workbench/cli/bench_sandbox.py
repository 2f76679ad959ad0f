"""The executor against a cold, isolated Python with the same imports: time of one run, and runs per second."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from workbench.cli.bench import Measured, Tell, ratio
from workbench.config import ROOT
from workbench.sandbox.executor import Executor, Request, Result
from workbench.types import Verdict, WorkbenchError

TRIVIAL = "print(1)\n"
JOB = """import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
train = pd.read_csv("input/train.csv")
test = pd.read_csv("input/test.csv")
sub = pd.read_csv("input/sample_submission.csv")
target = sub.columns[1]
columns = test.select_dtypes("number").columns[1:]
model = make_pipeline(StandardScaler(), LogisticRegression()).fit(train[columns].fillna(0), train[target])
sub[target] = model.predict_proba(test[columns].fillna(0))[:, 1]
sub.to_csv("submission.csv", index=False)
"""
"""A small scikit-learn job: two tables read, a model fitted, predictions written."""
TABLES = ROOT / "data" / "tasks" / "loan-missing" / "public"
IN_FLIGHT = 4
CLEARED_S = 0.05
SANDBOX = Path(__file__).parents[1] / "sandbox"


LEGEND = {
    "trivial": "is print(1)",
    "mljob": "reads two tables, fits a model and writes predictions",
    "full": "starts with pandas and scikit-learn imported",
    "thin": "starts with nothing imported",
    "cold": "is a fresh Python in bubblewrap that imports first what full has",
    "ratio": "is cold over full, those imports included: no claim about a Python that imports nothing",
}
ROUND_S = 1.5
"""Of 2 cores, cold runs included."""


def measure(repeats: int, tell: Tell) -> tuple[dict[str, Any], dict[str, Measured]]:
    """Facts about the sandbox, and the samples: `repeats` rounds of each kind in turns, 10 times as many in flight."""
    tell(f"about {10 + round(ROUND_S * repeats)} s in all")
    with Executor([TABLES], IN_FLIGHT, flavours=("full", "thin")) as executor, tempfile.TemporaryDirectory() as scratch:
        described = executor.describe()
        boots = {f"boot_{name}_s": Measured([seconds], "s") for name, seconds in described["boot_s"].items()}
        kinds = {
            "trivial_full_ms": Request(TRIVIAL, collect=None),
            "trivial_thin_ms": Request(TRIVIAL, collect=None, flavour="thin"),
            "mljob_full_ms": Request(JOB, TABLES),
        }
        samples: dict[str, list[float]] = {name: [] for name in (*kinds, "trivial_cold_ms", "mljob_cold_ms")}
        for request in kinds.values():  # the first of each kind reads the tables into the page cache
            _once(executor, request)
        cold_rounds = max(1, repeats // 4)  # seconds each; a quarter of the rounds tells as much
        for number in range(repeats):
            if number % cold_rounds == 0:
                tell(f"one at a time: round {number + 1} of {repeats}")
            for name, request in kinds.items():
                samples[name].append(_once(executor, request))
            if number < cold_rounds:
                samples["trivial_cold_ms"].append(_cold(Path(scratch), TRIVIAL))
                samples["mljob_cold_ms"].append(_cold(Path(scratch), JOB))
        found = {name: Measured(values, "ms") for name, values in samples.items()}
        for flavour in ("full", "thin"):
            tell(f"{IN_FLIGHT} in flight, {flavour}")
            found[f"runs_per_s_{flavour}"] = _throughput(executor, kinds[f"trivial_{flavour}_ms"], 10 * repeats)
    found["trivial_ratio"] = ratio(found["trivial_cold_ms"], found["trivial_full_ms"])
    found["mljob_ratio"] = ratio(found["mljob_cold_ms"], found["mljob_full_ms"])
    return {"isolation": described["level"], "legend": LEGEND}, {**boots, **found}


def _once(executor: Executor, request: Request) -> float:
    """Milliseconds from the request to its result, once the run before has been cleared away."""
    time.sleep(CLEARED_S)
    start = time.perf_counter()
    _good(executor.submit(request).result(), request)
    return 1000 * (time.perf_counter() - start)


def _good(result: Result, request: Request) -> None:
    if result.verdict is not Verdict.OK or (request.collect and not result.submission):
        raise WorkbenchError(f"a benchmark program ended with {result.verdict.value}: {result.reason or result.stderr}")


def _throughput(executor: Executor, request: Request, count: int) -> Measured:
    """Runs per second with `IN_FLIGHT` at once, in five stretches."""
    values = []
    for _ in range(5):
        start = time.perf_counter()
        for future in [executor.submit(request) for _ in range(max(IN_FLIGHT, count // 5))]:
            _good(future.result(), request)
        values.append(max(IN_FLIGHT, count // 5) / (time.perf_counter() - start))
    return Measured(values, "1/s")


def _cold(scratch: Path, code: str) -> float:
    """Milliseconds of a fresh Python in fresh namespaces that imports what a zygote has imported, then runs `code`."""
    program = f"import sys\nsys.path.insert(0, {str(SANDBOX)!r})\nimport zygote\nzygote.preload()\n{code}"
    folder = Path(tempfile.mkdtemp(dir=scratch))
    shutil.copytree(TABLES, folder / "input")
    start = time.perf_counter()
    ended = subprocess.run(
        [*_isolated(folder), sys.executable, "-s", "-B", "-c", program], cwd=folder, capture_output=True, check=False
    )
    spent = 1000 * (time.perf_counter() - start)
    if ended.returncode:
        raise WorkbenchError(f"the cold program failed: {ended.stderr.decode(errors='replace').splitlines()[-1:]}")
    return spent


def _isolated(folder: Path) -> list[str]:
    """bubblewrap with all namespaces, the file system read-only but for the folder; nothing where it is missing."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        return []
    words = [bwrap, "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    return [*words, "--bind", str(folder), str(folder), "--chdir", str(folder)]
