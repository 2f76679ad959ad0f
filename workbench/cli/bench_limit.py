"""What this machine can do at the most: how fast it multiplies matrices and how fast it reads memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

SECONDS = 0.25
WIDTHS = (1024, 2048)
"""Sides of the square products: the faster one counts."""
READ_BYTES = 2**28
"""More than the caches of most machines hold."""


def measure_machine(dtype: Any, device: Any) -> dict[str, float]:
    """{flops, bandwidth}: the best rate found in products of `dtype`, and in adding up what lies in memory."""
    import torch

    from workbench.cli.bench_sides import settled

    with torch.inference_mode():
        rates = []
        for width in WIDTHS:
            left, right = (torch.randn(width, width, device=device).to(dtype) for _ in range(2))
            rates.append(2 * width**3 / _best(partial(torch.matmul, left, right), settled))
        block = torch.ones(READ_BYTES // 4, device=device)
        return {"flops": max(rates), "bandwidth": READ_BYTES / _best(block.sum, settled)}


def _best(work: Callable[[], Any], settled: Callable[[], None]) -> float:
    """Least seconds of several calls: whatever else runs can only make one slower."""
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < 4 or (len(times) < 40 and time.perf_counter() - begin < SECONDS):
        start = time.perf_counter()
        work()
        settled()
        times.append(time.perf_counter() - start)
    return min(times)
