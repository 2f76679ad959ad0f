"""`workbench bench together`: training beside programs in the sandbox, on the same cores.

Programs that compute must cost the machine little more than both one after the other; programs that wait, little more
than the longer of both.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from workbench.cli.bench import Measured, Tell
from workbench.cli.bench_work import Workload
from workbench.sandbox.executor import Executor, Request, Result
from workbench.types import Verdict, WorkbenchError

SECONDS = 0.4
"""Of CPU of a program that computes; of waiting of one that waits."""
PROGRAMS = {
    "computing": (
        8,
        f"import time\nend = time.process_time() + {SECONDS}\nwhile time.process_time() < end:\n    pass\n",
    ),
    "waiting": (16, f"import time\ntime.sleep({SECONDS})\n"),
}
WORKERS = 2
UPDATES = 4


def measure(work: Workload, repeats: int, tell: Tell) -> tuple[dict[str, Any], dict[str, Measured]]:
    """Seconds of both alone and together, in turns, and the ratios of each round."""
    from workbench.cli.bench_ours import Ours

    tell(f"loading {work.policy}")
    ours = Ours(work)
    ours.generation(0)
    ours.training(0)

    def train() -> None:
        for _ in range(UPDATES):
            ours.training(0)

    samples: dict[str, list[float]] = {}
    with Executor(workers=WORKERS, flavours=("thin",)) as executor:
        for number in range(repeats):
            tell(f"round {number + 1} of {repeats}")
            for kind, (count, program) in PROGRAMS.items():
                requests = [Request(program, collect=None, flavour="thin")] * count
                training = _timed(train)
                executing = _timed(lambda requests=requests: _finish(_start(executor, requests)))  # type: ignore[misc]
                both = _timed(lambda requests=requests: _beside(executor, requests, train))  # type: ignore[misc]
                limit = training + executing if kind == "computing" else max(training, executing)
                for name, value in (
                    ("training_alone_s", training),
                    (f"{kind}_alone_s", executing),
                    (f"{kind}_together_s", both),
                    (f"{kind}_ratio", both / limit),
                ):
                    samples.setdefault(name, []).append(value)
    legend = {
        "computing_ratio": "is together over the sum of both alone",
        "waiting_ratio": "is together over the longer of both alone",
    }
    found = {name: Measured(values, "x" if name.endswith("ratio") else "s") for name, values in samples.items()}
    return {"legend": legend, "workload": work.described()}, found


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _start(executor: Executor, requests: list[Request]) -> list[Future[Result]]:
    return [executor.submit(request) for request in requests]


def _finish(running: list[Future[Result]]) -> None:
    for future in running:
        if (result := future.result()).verdict is not Verdict.OK:
            raise WorkbenchError(
                f"a program of the benchmark ended with {result.verdict.value}: see `workbench doctor`."
            )


def _beside(executor: Executor, requests: list[Request], train: Callable[[], None]) -> None:
    running = _start(executor, requests)
    train()
    _finish(running)
