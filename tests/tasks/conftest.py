"""Somebody's table, made into a task."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from workbench.tasks.build import Blueprint, build_task
from workbench.tasks.metrics import BINARY
from workbench.tasks.mle import MleTask

CLASSES = {"logloss": ("a", "b", "c"), "qwk": ("1", "2", "3"), "accuracy": ("x y", "z,w", "ü"), "f1": ("no", "yes")}
BLUEPRINT = Blueprint(
    id="mine",
    metric="rmse",
    id_column="row",
    train_target="y",
    seed=5,
    summary="Predict y.",
    row="a row",
    target="what is wanted",
    source="made up",
    licence="CC0-1.0",
    train_rows=150,
    test_rows=150,
)


def _table(metric: str, rows: int = 300) -> pd.DataFrame:
    """Two numbers (one with gaps) and a word; the target is a noisy function of them."""
    rng = np.random.default_rng(4)
    frame = pd.DataFrame({"u": rng.normal(size=rows), "v": rng.normal(size=rows)})
    frame["word"] = rng.choice(["red", "green"], rows)
    signal = frame["u"] * 2 + frame["v"] + 1.5 * (frame["word"] == "red") + rng.normal(size=rows) / 2
    frame.loc[::17, "v"] = np.nan
    classes = CLASSES.get(metric)
    if classes:
        frame["y"] = [classes[int(code)] for code in pd.qcut(signal, len(classes), labels=False)]
    elif metric in BINARY:
        frame["y"] = (signal > 1).astype(int)
    else:
        frame["y"] = signal + (20 if metric == "rmsle" else 0)
    return frame


def _blueprint(metric: str) -> Blueprint:
    return replace(BLUEPRINT, metric=metric, classes=CLASSES.get(metric, ()))


@pytest.fixture(scope="session")
def table() -> Callable[..., pd.DataFrame]:
    return _table


@pytest.fixture(scope="session")
def blueprint() -> Callable[[str], Blueprint]:
    return _blueprint


@pytest.fixture(scope="session")
def mine(tmp_path_factory: pytest.TempPathFactory) -> MleTask:
    """A small task of binary labels with a board of ten; tests that change it take a copy."""
    folder = tmp_path_factory.mktemp("tasks") / "mine"
    return build_task(_blueprint("f1"), _table("f1"), folder, entries=10)


@pytest.fixture
def copied(mine: MleTask, tmp_path: Path) -> Path:
    return Path(shutil.copytree(mine.folder, tmp_path / "mine"))
