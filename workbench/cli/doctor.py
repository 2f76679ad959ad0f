"""`workbench doctor`: what this machine has, what it lacks, and the one command that mends each lack."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from workbench.config import ROOT
from workbench.folder import refuse_network
from workbench.types import WorkbenchError

PACKAGES = (
    "workbench torch transformers peft accelerate tokenizers numpy pandas scikit-learn pydantic plotly "
    "ipywidgets ipykernel jupyterlab papermill"
).split()
LEAST_FREE_GB = 2.0
LEAST_MEMORY_GB = 3.0


@dataclass(frozen=True, slots=True)
class Problems:
    """What keeps a run from starting, and what only should be known."""

    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def examine() -> dict[str, Any]:
    """Facts by topic; `errors` and `warnings`, one sentence with a remedy each; `ok`: no error, a run can start."""
    problems = Problems()
    found = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": _versions(),
        "machine": _machine(problems),
        "device": _device(problems),
        "isolation": _isolation(problems),
        "paths": [_path(name, path, problems) for name, path in _places().items()],
        "embedded": _embedded(problems),
    }
    return {**found, "errors": problems.errors, "warnings": problems.warnings, "ok": not problems.errors}


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def _machine(problems: Problems) -> dict[str, Any]:
    import psutil

    memory = psutil.virtual_memory()
    available = memory.available / 2**30
    if available < LEAST_MEMORY_GB:
        problems.warnings.append(
            f"{available:.1f} GB of memory are free: close programs, a run of the tiny policy wants 3 GB."
        )
    return {
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": round(memory.total / 2**30, 1),
        "memory_free_gb": round(available, 1),
    }


def _device(problems: Problems) -> dict[str, Any]:
    try:
        import torch
    except (ImportError, OSError) as error:
        problems.errors.append(f"torch cannot be imported ({error}): run `make venv`.")
        return {"auto": None}
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    device = "cuda" if cuda else "mps" if mps else "cpu"
    if not cuda and shutil.which("nvidia-smi") and torch.version.cuda is None:
        problems.warnings.append(
            "There is an NVIDIA driver, but this torch is the CPU build: install the CUDA build into .venv "
            "(`.venv/bin/pip install --force-reinstall torch` with PyTorch's CUDA index) to use the GPU."
        )
    found: dict[str, Any] = {"auto": device, "threads": torch.get_num_threads(), "capability": None}
    if cuda:
        found["gpus"] = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    elif device == "cpu":
        found["capability"] = torch.backends.cpu.get_cpu_capability()
    probe = {name: _product_ms(getattr(torch, name), device) for name in ("float32", "bfloat16")}
    return {**found, "probe_ms": probe, "faster": min(probe, key=lambda name: probe[name])}


def _product_ms(dtype: Any, device: str, size: int = 768, repeats: int = 8) -> float:
    """Median milliseconds of a product of two square matrices."""
    import torch

    left = torch.ones(size, size, dtype=dtype, device=device)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        (left @ left).sum().item()
        times.append(time.perf_counter() - start)
    return round(sorted(times)[repeats // 2] * 1000, 3)


def _isolation(problems: Problems) -> dict[str, Any]:
    from workbench.sandbox.isolation import probe

    try:
        found = probe(anew=True)  # a hint may have been followed since the last time
    except WorkbenchError as error:
        problems.errors.append(str(error))
        return {"level": None, "means": None, "missing": [], "hints": [], "tried": []}
    if found.level == "E":
        problems.errors.append(
            "Scripts cannot be isolated here (level E): "
            f"{' '.join((*found.tried, *found.hints)) or 'see README'}; "
            "or set unsafe_executor=true if you trust the policy."
        )
    else:
        problems.warnings.extend((*found.tried, *found.hints))
    told = {name: getattr(found, name) for name in ("missing", "hints", "tried")}
    return {"level": found.level, "means": _MEANINGS[found.level], **told}


_MEANINGS = {
    "B": "the best there is: bubblewrap, namespaces of its own, Landlock and a filter of system calls around each run",
    "C": "namespaces of its own and a filter of system calls around each run, one barrier less than at the best, B",
    "D": "Landlock and a filter of system calls around each run, but no namespaces; the best is B",
    "E": "scripts run with your rights; the best is B",
}


_REMEDIES = {
    "runs": "make it writable, or start runs elsewhere with --run DIR",
    "out": "make it writable, or write notebooks elsewhere with --out DIR",
    "temporary": "make it writable, or set TMPDIR to a folder that is",
}


def _places() -> dict[str, Path]:
    try:
        temporary = tempfile.gettempdir()
    except FileNotFoundError:  # it tried several, and the current folder
        temporary = os.environ.get("TMPDIR") or "/tmp"
    return {"runs": ROOT / "runs", "out": ROOT / "out", "temporary": Path(temporary)}


def _path(name: str, path: Path, problems: Problems) -> dict[str, Any]:
    """Whether a folder, or the first of its parents that exists, takes a file; and the room there."""
    existing = next(p for p in (path, *path.parents) if p.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            writable = True
    except OSError as error:
        writable = False
        told = problems.warnings if name == "out" else problems.errors  # a run writes nothing there
        told.append(f"'{path}' cannot be written ({error.strerror}): {_REMEDIES[name]}.")
    free = shutil.disk_usage(existing).free / 2**30
    if free < LEAST_FREE_GB:
        problems.warnings.append(f"'{path}' has {free:.1f} GB free: a run wants {LEAST_FREE_GB:.0f} GB, make room.")
    if name == "runs":
        try:
            refuse_network(path)
        except WorkbenchError as error:
            problems.errors.append(str(error))
    return {"name": name, "path": str(path), "writable": writable, "free_gb": round(free, 1)}


def _embedded(problems: Problems) -> dict[str, Any]:
    policy = (ROOT / "data" / "policy" / "config.json").is_file()
    tasks = len(list((ROOT / "data" / "tasks").glob("*/config.yaml")))
    if not policy:
        problems.warnings.append(
            f"The tiny policy is missing in {ROOT / 'data' / 'policy'}: run `workbench warmstart`."
        )
    if not tasks:
        problems.warnings.append(f"The embedded tasks are missing in {ROOT / 'data' / 'tasks'}: restore them from git.")
    return {"checkout": str(ROOT), "policy": policy, "tasks": tasks}


def show(found: dict[str, Any]) -> None:
    """The findings as a table on stdout."""
    from rich.console import Console
    from rich.table import Table

    from workbench.sandbox.isolation import BEST

    device, machine, isolation = found["device"], found["machine"], found["isolation"]
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    probe = ", ".join(f"{name} {ms} ms" for name, ms in device.get("probe_ms", {}).items())
    table.add_row("python", f"{found['python']} ({sys.executable})")
    table.add_row("platform", found["platform"])
    table.add_row("machine", f"{machine['cpus']} CPUs, {machine['memory_free_gb']} of {machine['memory_gb']} GB free")
    table.add_row("device", f"{device['auto']} {device.get('capability') or device.get('gpus') or ''}")
    table.add_row("dtype probe", probe)
    level = isolation["level"]
    table.add_row("isolation", f"level {level} ({isolation['means']})" if level else "level unknown")
    if isolation["missing"]:
        more = "nothing stronger is offered" if level == BEST else "see README"
        table.add_row("not given", "; ".join((*isolation["missing"], more)))
    for place in found["paths"]:
        state = "writable" if place["writable"] else "NOT writable"
        table.add_row(place["name"], f"{place['path']}: {state}, {place['free_gb']} GB free")
    embedded = found["embedded"]
    table.add_row("embedded", f"{embedded['tasks']} tasks, policy {'present' if embedded['policy'] else 'missing'}")
    table.add_row("versions", ", ".join(f"{name} {number or 'missing'}" for name, number in found["versions"].items()))
    console = Console(highlight=False)
    console.print(table)
    for name in ("errors", "warnings"):
        for sentence in found[name]:
            console.print(f"{name[:-1]}: {sentence}", markup=False, soft_wrap=True)
    console.print("A run can start." if found["ok"] else "A run cannot start.", style="bold")
