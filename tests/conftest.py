"""Settings that every test shares: offline, two threads, and no test that needs a GPU where there is none."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("JUPYTER_PLATFORM_DIRS", "1")

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not any(item.get_closest_marker("gpu") for item in items):
        return
    import torch

    if not torch.cuda.is_available():
        skip = pytest.mark.skip(reason="no CUDA device: run it on a machine that has one")
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(skip)
