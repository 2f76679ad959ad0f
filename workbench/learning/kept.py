"""Measured policies kept in a folder, so that a long evaluation goes on where it was broken off."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from workbench.agent.environment import Environment
from workbench.agent.policy import Policy
from workbench.config import ROOT, Config
from workbench.folder import write_file
from workbench.learning.measures import Measured
from workbench.learning.statistics import Table


def name_of(policy: Policy, environment: Environment, config: Config, plan: Mapping[str, Any]) -> str:
    """Equal where the same measurement would be made: weights, prompts, tasks, limits, machine, code and `plan`."""
    tasks = {name: task.digest() for name, task in sorted(environment.tasks.items())}
    prompts = [config.max_prompt_tokens, config.max_completion_tokens]
    parts = (dict(plan), tasks, prompts, environment.circumstances(), _code(), _weights(policy))
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:20]


def _code() -> str:
    found = hashlib.sha256()
    for path in sorted((ROOT / "workbench").rglob("*.py")):
        found.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return found.hexdigest()


def _weights(policy: Policy) -> str:
    import torch

    found = hashlib.sha256()
    for name, weight in sorted(policy.model.state_dict().items()):
        found.update(f"{name} {weight.dtype}".encode())
        found.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return found.hexdigest()


def write(file: Path, measured: Measured) -> None:
    """Keep what was measured, whole or not at all. Raises OSError where the disk does."""
    content = {
        "budget": measured.budget,
        "tasks": measured.tasks,
        "tables": _plain(measured.tables),
        "curve": {step: _plain(tables) for step, tables in measured.curve.items()},
        "actions": {kind: [table.tolist() for table in pair] for kind, pair in measured.actions.items()},
        "reports": measured.reports,
        "templates": measured.templates,
        "drafts": measured.drafts,
        "failures": measured.failures,
        "unscorable": measured.unscorable,
        "attempts_lost": measured.attempts_lost,
        "attempts": measured.attempts,
    }
    write_file(file, json.dumps(content) + "\n")


def read(file: Path) -> Measured | None:
    """What was kept; None where nothing was."""
    if not file.exists():
        return None
    content = json.loads(file.read_text(encoding="utf-8"))
    valid_and_all = {kind: (np.array(one), np.array(all_)) for kind, (one, all_) in content["actions"].items()}
    return Measured(
        **content
        | {
            "tasks": tuple(content["tasks"]),
            "tables": _tables(content["tables"]),
            "curve": {int(step): _tables(tables) for step, tables in content["curve"].items()},
            "actions": valid_and_all,
            "templates": {task: Counter(found) for task, found in content["templates"].items()},
            "failures": Counter(content["failures"]),
        }
    )


def _plain(tables: Mapping[str, Table]) -> dict[str, list[list[float | None]]]:
    return {
        name: [[None if np.isnan(cell) else float(cell) for cell in row] for row in table]
        for name, table in tables.items()
    }


def _tables(plain: Mapping[str, list[list[float | None]]]) -> dict[str, Table]:
    return {name: np.array(rows, dtype=np.float64) for name, rows in plain.items()}
