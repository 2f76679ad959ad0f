"""One executor for all tests of the room: what a test does inside must not harm the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from catalogue import PUBLIC

from workbench.sandbox import isolation
from workbench.sandbox.executor import Executor, Limits, Request, Result

Run = Callable[..., Result]


@pytest.fixture(scope="session")
def executor() -> Iterator[Executor]:
    with Executor([PUBLIC], workers=2) as started:
        yield started


@pytest.fixture
def run(executor: Executor) -> Run:
    def _run(code: str, *, stdin: bytes = b"", public: Path | None = None, seed: int = 0, **limits: float) -> Result:
        asked = Limits(**{"cpu_s": 2.0, "wall_s": 4.0, "memory_mb": 256, **limits})  # type: ignore[arg-type]
        return executor.submit(Request(code, public_dir=public, stdin=stdin, limits=asked, seed=seed)).result(60)

    return _run


WITHOUT = {"B": (), "C": ("bubblewrap",), "D": ("namespaces",), "D, Landlock 5": ("namespaces",)}


@pytest.fixture(scope="session", params=list(WITHOUT))
def level(request: pytest.FixtureRequest) -> Iterator[tuple[str, Executor]]:
    """Every level that isolates, by name, and a thin executor that runs at it; D as older kernels have it, too."""
    without = WITHOUT[request.param]
    found = isolation.probe(without)
    if found.level != request.param[0]:
        pytest.skip(f"this machine gives {found.level} there: see `workbench doctor`")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "D, Landlock 5":
            older = replace(found, means=replace(found.means, landlock=5))
            patch.setattr(isolation, "require", lambda *_, **__: older)
        executor = Executor([PUBLIC], 2, flavours=("thin",), without=without).start()
    with executor:
        yield request.param, executor
