"""What the C libraries below torch hold of this process's memory, on CPUs."""

from __future__ import annotations

import ctypes
import os
import platform

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Of mallopt(3)."""
KERNELS = 128
"""Compiled products kept, each some 0.7 MB and 1 ms: those of a decoding step, or of one micro-batch."""


def keep_freed_memory() -> None:
    """Have the C library keep memory that tensors give back, where it is glibc.

    By default it returns large blocks to the system at once, and a forward and backward pass on a CPU spends a tenth of
    its time having the same pages cleared and mapped again.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    if libc.mallopt(M_MMAP_THRESHOLD, 2**30) or libc.mallopt(M_MMAP_THRESHOLD, 2**25):  # older ones: 32 MB at most
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def give_back_memory() -> None:
    """Return what is free to the system, where the C library is glibc: a rare peak is not kept for ever."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


def bound_kernel_caches() -> None:
    """Have oneDNN and torch's layer above it keep few compiled products, unless the environment says how many.

    They compile one for every number of rows that they meet and keep 1,024 each: with prompts and completions of ever
    new lengths that is 0.7 GB after some hundred steps. Both ask the environment at their first product in the process.
    """
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, str(KERNELS))
