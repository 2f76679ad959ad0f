"""Memory that the C libraries hold: each case in a process of its own, since they ask only once."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest
import torch


def numbers(code: str, mode: str) -> list[int]:
    plain = {name: value for name, value in os.environ.items() if "CACHE_CAPACITY" not in name}
    found = subprocess.run([sys.executable, "-c", code, mode], capture_output=True, text=True, check=True, env=plain)
    return [int(word) for word in found.stdout.split()]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it speaks to glibc")
def test_memory_given_back_is_not_mapped_again() -> None:
    """64 MB are 16,000 pages: without it each tensor of a forward pass has its pages cleared anew."""
    code = """
import resource, sys, torch
from workbench.agent.memory import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
faults = []
for _ in range(21):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.zeros(2**24)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(sorted(faults)[10])
"""
    faults = {}
    for mode in ("kept", "plain"):
        (faults[mode],) = numbers(code, mode)
    assert faults["kept"] < 100
    assert faults["plain"] > 10 * (faults["kept"] + 1)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this build of torch has no oneDNN")
def test_products_of_ever_new_sizes_do_not_pile_up() -> None:
    """The same products a second time: what grows then is kept for each size, not for the largest tensors."""
    code = """
import ctypes, sys, psutil, torch
from workbench.agent.memory import KERNELS, bound_kernel_caches
if sys.argv[1] == "bounded":
    bound_kernel_caches()
torch.set_num_threads(1)
libc, weight = ctypes.CDLL(None), torch.zeros(256, 128)
def held(sizes):
    for rows in sizes:
        torch.ops.mkldnn._linear_pointwise(torch.zeros(rows, 128), weight, None, "none", [], "")
    libc.malloc_trim(0)
    return psutil.Process().memory_info().rss // 2**20
few = held(range(1, KERNELS + 1))
print(held(range(KERNELS + 1, 3 * KERNELS + 1)) - few)
"""
    (bounded,), (plain,) = numbers(code, "bounded"), numbers(code, "plain")
    assert bounded < 0.2 * plain
