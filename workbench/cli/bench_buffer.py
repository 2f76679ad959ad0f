"""The curriculum and its run at two sizes: choosing, observing, adding, evicting, committing, reopening; memory."""

from __future__ import annotations

import gc
import random
import tempfile
import time
from collections.abc import Sequence
from itertools import count, pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import psutil

from workbench.agent.memory import give_back_memory
from workbench.cli.bench import Measured, Tell, ratio
from workbench.config import Config, make_config
from workbench.learning.sampler import Curriculum
from workbench.run import Run
from workbench.types import Action, Feedback, Group, Kind, Reward, State, StopReason, Turn, Verdict, WorkbenchError

SMALL = 1000
"""States of the buffer that the large one is compared with."""
STATES = 1_000_000
MOST = 10_000_000
CHOSEN, ACTIONS, TASKS = 64, 8, 64
STEPS = 1_000_000
REOPENED = 3
WORDS = "train = pd.read_csv( 'input/train.csv' ) model .fit predict [ 'target' ] x y fold score 0.5 10 for in".split()

LEGEND = {
    "choose64": "draws 64 states and reads them from run.sqlite",
    "observe64": "takes in the rewards of their groups and ranks them anew",
    "add": "makes states of 512 actions, evicts as many, commits all of the step but its turns, and snapshots when due",
    "fill": "is the same below the capacity, nothing evicted",
    "small": f"is a buffer of {SMALL} states, ratio the large one over it",
    "resident": "is the memory of the process above that before the buffer was filled",
    "reopen": "opens the run, rebuilds the curriculum and chooses once",
}


def check_size(states: int) -> None:
    """Raises WorkbenchError for a number of states that is not measured."""
    if not SMALL <= states <= MOST:
        raise WorkbenchError(f"states={states} is not accepted: expected {SMALL} to {MOST}.")


def measure(states: int, repeats: int, tell: Tell) -> tuple[dict[str, Any], dict[str, Measured]]:
    """Facts about the workload, and the samples: `repeats` steps at each size. Raises WorkbenchError for a size."""
    check_size(states)
    small, _ = _at(SMALL, repeats, tell)
    found, facts = _at(states, repeats, tell)
    for name in ("choose64", "observe64"):
        found[f"{name}_small_ms"] = small[f"{name}_ms"]
        found[f"{name}_ratio"] = ratio(found[f"{name}_ms"], small[f"{name}_ms"])
    found["add_small_per_s"] = small["add_per_s"]
    return {"buffer": {"states": states, **facts}, "legend": LEGEND}, found


def _at(states: int, repeats: int, tell: Tell) -> tuple[dict[str, Measured], dict[str, Any]]:
    """Fill a buffer of this capacity, measure steps in it, then reopen its run."""
    config = make_config(steps=STEPS, capacity=states, children_cap=MOST)
    with tempfile.TemporaryDirectory(prefix="workbench-bench-") as folder:
        path = Path(folder) / "run"
        with Run.create(path, config, {}) as run:
            before = _resident_mb()
            life = Life(run)
            fill = life.fill(states, tell)
            resident = _resident_mb() - before
            tell(f"{states} states: {repeats} steps")
            rounds = [life.step() for _ in range(repeats)]
            facts = {"script_bytes": round(mean(life.sizes)), "snapshot_mb": round(life.snapshot_mb, 1)}
            facts["snapshot_s"] = round(life.snapshot_s, 3)
            del life
        reopened: list[float] = []
        for number in range(REOPENED):
            tell(f"{states} states: reopening, {number + 1} of {REOPENED}")
            gc.collect()
            reopened.append(_reopen_s(path, config))
        with Run.open(path, readonly=True) as run:
            since = next(run.curriculum_snapshots(), (0, {}))[0] + 1
            facts["events_after_snapshot"] = sum(1 for _ in run.curriculum_events(since))
        facts["disk_mb"] = round(sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) / 1e6)
    names = (("choose64_ms", "ms"), ("observe64_ms", "ms"), ("add_per_s", "1/s"))
    found = {name: Measured([row[place] for row in rounds], unit) for place, (name, unit) in enumerate(names)}
    found |= {"fill_per_s": Measured(fill, "1/s"), "resident_mb": Measured([resident], "MB")}
    return found | {"reopen_s": Measured(reopened, "s")}, facts


class Life:
    """A run in which a policy without a model acts: scripts of random lines, a third of them valid."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.draw = random.Random(0)
        self.lines = [" ".join(self.draw.choices(WORDS, k=8)) + "\n" for _ in range(2000)]
        self.numbers = count()
        self.curriculum = Curriculum(run.config, _roots(), STEPS, run)
        self.number = 0
        self.sizes: list[int] = []
        self.snapshot_mb = self.snapshot_s = 0.0
        """Of the latest snapshot; the seconds are those of making it, in which a step waits."""

    def fill(self, states: int, tell: Tell) -> list[float]:
        """Steps until there are so many states; states added per second of adding, for each tenth."""
        rates: list[float] = []
        for tenth in range(1, 11):
            steps: list[float] = []
            while len(self.curriculum.buffer) < states * tenth // 10:
                steps.append(self.step()[2])
            if steps:
                rates.append(len(steps) / sum(1 / rate for rate in steps))
            tell(f"{len(self.curriculum.buffer)} of {states} states")
        return rates

    def step(self) -> tuple[float, float, float]:
        """(ms to choose, ms to observe, states added per second of adding and committing) of one training step."""
        self.number += 1
        curriculum = self.curriculum
        times = [time.perf_counter()]
        chosen = curriculum.choose(self.number, CHOSEN)
        times.append(time.perf_counter())
        groups = [self.group(place, state) for place, state in enumerate(chosen)]
        times.append(time.perf_counter())
        curriculum.observe(self.number, groups)
        times.append(time.perf_counter())
        curriculum.add(self.number, groups)
        events = curriculum.drain_events()
        start = time.perf_counter()
        snapshot = curriculum.drain_snapshot()
        if snapshot is not None:
            self.snapshot_s = time.perf_counter() - start
            self.snapshot_mb = sum(map(len, snapshot.values())) / 1e6
        self.run.commit(
            self.number,
            metrics=curriculum.metrics(),
            curriculum_events=events,
            states=curriculum.drain_states(),
            snapshot=snapshot,
        )
        times.append(time.perf_counter())
        chose, _, observed, added = (1000 * (after - before) for before, after in pairwise(times))
        return chose, observed, 1000 * len(chosen) * ACTIONS / added

    def group(self, place: int, state: State) -> Group:
        """What `ACTIONS` actions in a state came to."""
        turns = tuple(Turn(state, _ACTION, *self.outcome(), f"g{place}", "t") for _ in range(ACTIONS))
        return Group(f"g{place}", state, (1,), turns)

    def outcome(self) -> tuple[Feedback, Reward]:
        """A new script and how it went."""
        code = f"# {next(self.numbers)}\n{''.join(self.draw.choices(self.lines, k=35))}"
        self.sizes = [*self.sizes[-99:], len(code)]
        if self.draw.random() < 1 / 3:
            score = self.draw.random()
            feedback = Feedback(Verdict.OK, code, stdout="Validation score: 0.5\n" * 10, score=score, own_score=score)
            return feedback, Reward(0.2 + 0.8 * score)
        error = f"KeyError: 'column {self.draw.randrange(1000)}'"
        stderr = "  File 'script.py', line 3, in <module>\n" * 12 + error
        return Feedback(Verdict.RUNTIME_ERROR, code, reason=error, stderr=stderr), Reward(0.05)


_ACTION = Action("", (1,), (-1.0,), 0, StopReason.EOS)


def _roots() -> Sequence[State]:
    return [State(f"task-{number:02d}", Kind.DRAFT) for number in range(TASKS)]


def _reopen_s(path: Path, config: Config) -> float:
    start = time.perf_counter()
    with Run.open(path) as run:
        curriculum = Curriculum(config, _roots(), STEPS, run)
        curriculum.reopen(run)
        curriculum.choose(run.last_step() + 1, CHOSEN)
        return time.perf_counter() - start


def _resident_mb() -> float:
    gc.collect()
    give_back_memory()
    return psutil.Process().memory_info().rss / 1e6
