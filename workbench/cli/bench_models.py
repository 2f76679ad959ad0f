"""The suites `generation`, `training` and `step`: our side alone, or in turns with TRL's."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from statistics import median
from typing import Any

from workbench.cli import bench_ours, bench_trl
from workbench.cli.bench import Measured, Tell, ratio
from workbench.cli.bench_sides import Side, side
from workbench.cli.bench_work import Model, Workload

Times = Mapping[str, float]
WARM = -1
"""Number of the round that counts nowhere."""
QUICK_S = 5.0
LEGEND = {
    "*_limit_share": "what this machine could do at the most, by its matrix products and its memory (measured beside "
    "it), in per cent of the time taken: 100 % cannot be faster",
    "peak_mb": "most resident memory of the side's own process",
}


def measure(
    suite: str, work: Workload, repeats: int, against: str | None, tell: Tell
) -> tuple[dict[str, Any], dict[str, Measured]]:
    """Facts about both sides, and the samples of `repeats` rounds in which each side has one turn.

    Names without prefix are ours, with `peer_` TRL's. A peak is the resident memory of the side's own process.
    """
    with ExitStack() as stack:
        ours, peer, facts = open_sides(stack, work, against, tell)
        limits = [ours.ask(do="limits", number=WARM)]
        tell("warming up")
        ours.ask(do="step", number=WARM)
        probed = probe(peer, work, suite, tell) if peer else None
        mine: list[Times] = []
        theirs: list[Times] = []
        begin = time.monotonic()
        for number in range(repeats):
            mine.append(our_turn(ours, suite, number))
            if peer and probed:
                theirs.append(peer.ask(do=suite, number=number, micro=probed.fastest, autocast=probed.autocast))
            tell(progress(number + 1, repeats, mine[-1], theirs[-1] if theirs else None, time.monotonic() - begin))
        limits.append(ours.ask(do="limits", number=WARM))
    best = {name: max(each[name] for each in limits) for name in limits[0]}
    found = _side(suite, work, mine, ours.facts["loaded_mb"]) | _shares(suite, work, mine, ours.facts["model"], best)
    facts["legend"] = LEGEND
    facts |= {"matrix_gflops": round(best["flops"] / 1e9, 1), "read_gb_s": round(best["bandwidth"] / 1e9, 1)}
    if peer and probed:
        other = _side(suite, work, theirs, peer.facts["loaded_mb"])
        other["peak_fastest_mb"] = other["peak_mb"]
        other["peak_mb"] = Measured([probed.peak(theirs)], "MB")
        found |= {f"peer_{name}": measured for name, measured in other.items()} | _ratios(suite, found, other)
        facts["peer"] |= probed.described()
    return facts, found


def open_sides(
    stack: ExitStack, work: Workload, against: str | None, tell: Tell
) -> tuple[Side, Side | None, dict[str, Any]]:
    """Our side, TRL's where asked for, with the dtype and the adapter that ours chose, and facts about both."""
    tell(f"loading {work.policy}")
    ours = stack.enter_context(side(bench_ours.serve, work, "the workbench"))
    facts: dict[str, Any] = {name: ours.facts[name] for name in ("torch", "device", "threads")}
    chosen = replace(work, dtype=ours.facts["dtype"], adapter=ours.facts["adapter"])
    facts["workload"] = chosen.described() | {name: ours.facts[name] for name in ("parameters", "dtype_reason")}
    if against is None:
        return ours, None, facts
    tell("loading it for TRL")
    peer = stack.enter_context(side(bench_trl.serve, chosen, "TRL"))
    # how a step is cut is known after the probe
    hidden = ("loaded_mb", "memory_mb", "per_device_train_batch_size", "gradient_accumulation_steps")
    facts["peer"] = {name: value for name, value in peer.facts.items() if name not in hidden}
    return ours, peer, facts


class Probed:
    """The micro-batches that TRL was tried with: seconds of training and peaks by rows."""

    def __init__(self, tried: Mapping[int, Times], work: Workload, sampling_mb: float) -> None:
        self.tried, self.sampling_mb = tried, sampling_mb
        self.fastest = min(tried, key=lambda size: tried[size].get("training_s", 0.0))
        budget = min(work.config().micro_batch_tokens, work.rows * work.row_tokens)
        self.nearest = min(tried, key=lambda size: abs(size * work.row_tokens - budget))
        """Its tokens are the closest to those of our micro-batches: there the peaks are compared."""
        self.autocast = False

    def peak(self, rounds: Iterable[Times]) -> float:
        sampling = [each.get("generation_mb", 0.0) for each in rounds]
        return max([self.sampling_mb, self.tried[self.nearest].get("training_mb", 0.0), *sampling])

    def described(self) -> dict[str, Any]:
        seconds = {size: round(times["training_s"], 2) for size, times in self.tried.items() if "training_s" in times}
        return {
            "training_s_by_micro_batch": seconds,
            "per_device_train_batch_size": self.fastest,
            "bf16": self.autocast,
            "peak_at_micro_batch": self.nearest,
        }


def probe(peer: Side, work: Workload, suite: str, tell: Tell) -> Probed:
    """One step for warming up, then training once with each micro-batch, small ones first: memory that an allocator
    keeps would count for those that come after."""
    sizes = bench_trl.micro_batches(work.rows)
    if suite == "generation":  # the whole step is sampled at once, whatever the micro-batch
        first = peer.ask(do="generation", number=WARM, micro=sizes[-1], autocast=False)
        found = Probed({sizes[-1]: {}}, work, first["generation_mb"])
    else:
        first = peer.ask(do="training", number=WARM, micro=sizes[0], autocast=False)
        tried: dict[int, Times] = {}
        for size in sizes:
            if (needed := expected_mb(tried, size)) > peer.facts["memory_mb"]:
                tell(f"TRL, micro-batch of {size}: left out, it would take some {needed / 1000:.0f} GB of memory")
                break
            tried[size] = _trained(peer, micro=size, autocast=False)
            tell(f"TRL, micro-batch of {size}: {tried[size]['training_s']:.4g} s of training")
        found = Probed(tried, work, first["generation_mb"] if suite == "step" else 0.0)
    if peer.facts["dtype"] == "bfloat16":
        cast, plain = (
            _seconds_of(peer.ask(do=suite, number=WARM, micro=found.fastest, autocast=on), suite)
            for on in (True, False)
        )
        found.autocast = cast < plain
        tell(f"TRL with autocast: {cast:.4g} s, without: {plain:.4g} s")
    if suite != "generation" and found.tried[found.fastest]["training_s"] < QUICK_S:
        peer.ask(do="training", number=WARM, micro=found.fastest, autocast=found.autocast)
    return found


def expected_mb(tried: Mapping[int, Times], size: int) -> float:
    """The peak of a micro-batch, on the line through those of the two largest tried; 0 where fewer were."""
    *_, (small, low), (large, high) = [(0, 0.0), (0, 0.0), *((n, each["training_mb"]) for n, each in tried.items())]
    return high + (high - low) / (large - small) * (size - large) if large > small > 0 else 0.0


def _seconds_of(times: Times, suite: str) -> float:
    return times["generation_s"] + times["training_s"] if suite == "step" else times[f"{suite}_s"]


def _trained(peer: Side, **message: Any) -> Times:
    """One training, or the second where it is so short that what is done once per shape would count for much."""
    times = peer.ask(do="training", number=WARM, **message)
    return times if times["training_s"] > QUICK_S else peer.ask(do="training", number=WARM, **message)


def our_turn(ours: Side, suite: str, number: int) -> Times:
    times = ours.ask(do=suite, number=number)
    return times if suite == "training" else times | ours.ask(do="first", number=number)


def progress(done: int, repeats: int, mine: Times, theirs: Times | None, spent: float) -> str:
    """One line: this round's seconds of both sides, and how long the rest will take."""
    sides = [f"ours {_seconds(mine)}", *([f"TRL {_seconds(theirs)}"] if theirs else [])]
    left = spent / done * (repeats - done)
    return f"round {done} of {repeats}: {', '.join(sides)}; about {left:.0f} s left"


def _seconds(times: Times) -> str:
    parts = {"generating": times.get("generation_s", 0.0), "training": times.get("training_s", 0.0)}
    inner = " + ".join(f"{value:.3g} {name}" for name, value in parts.items() if value)
    return f"{sum(parts.values()):.3g} s ({inner})"


def _side(suite: str, work: Workload, rounds: Sequence[Times], loaded_mb: float) -> dict[str, Measured]:
    """What one side took."""
    found = {}
    if suite in ("generation", "step"):
        spent = [each["generation_s"] for each in rounds]
        found["generation_s"] = Measured(spent, "s")
        found["generation_tokens_per_s"] = Measured([work.tokens / seconds for seconds in spent], "1/s")
        if (decoding := _decoding(work, rounds)) is not None:
            found["decode_ms"] = decoding
    if suite in ("training", "step"):
        spent = [each["training_s"] for each in rounds]
        found["training_s"] = Measured(spent, "s")
        found["training_tokens_per_s"] = Measured([work.tokens / seconds for seconds in spent], "1/s")
    if suite == "step":
        spent = [each["generation_s"] + each["training_s"] for each in rounds]
        found["step_s"] = Measured(spent, "s")
        found["step_tokens_per_s"] = Measured([work.tokens / seconds for seconds in spent], "1/s")
    peaks = [max(each.get("generation_mb", 0.0), each.get("training_mb", 0.0)) for each in rounds]
    return found | {"peak_mb": Measured([max(peaks)], "MB"), "loaded_mb": Measured([loaded_mb], "MB")}


def _decoding(work: Workload, rounds: Sequence[Times]) -> Measured | None:
    """Milliseconds of one token-step of all rows, after the first token of each."""
    steps = work.completion_tokens - 1
    if not steps or any("first_s" not in each for each in rounds):
        return None
    return Measured([1000 * (each["generation_s"] - each["first_s"]) / steps for each in rounds], "ms")


def _shares(
    suite: str, work: Workload, rounds: Sequence[Times], model: Model, machine: Mapping[str, float]
) -> dict[str, Measured]:
    """How much of what this machine can do was reached, in per cent of the limit.

    Limit of a decoding step: the larger of its bytes at the bandwidth and its FLOPs at the rate of products. Of
    sampling: the FLOPs of reading the prompts, and all decoding steps. Of training: its FLOPs. Attention's own products
    are left out, so the real limit is a little slower and the share a little higher.
    """
    reading, flops, read = model.generation(work)
    step_s = max(read / machine["bandwidth"], flops / machine["flops"])
    limits = {
        "generation": reading / machine["flops"] + (work.completion_tokens - 1) * step_s,
        "training": model.training(work) / machine["flops"],
    }
    found = {
        f"{name}_limit_share": Measured([100 * limit / each[f"{name}_s"] for each in rounds], "%")
        for name, limit in limits.items()
        if suite in (name, "step")
    }
    decoding = _decoding(work, rounds)
    if decoding is not None:
        found["decode_limit_ms"] = Measured([1000 * step_s], "ms")
        typical = median(decoding.values)
        if typical > 0:  # it is a difference of two measurements, and noise where a step takes no time
            found["decode_limit_share"] = Measured([1e5 * step_s / typical], "%")
    return found


def _ratios(suite: str, ours: Mapping[str, Measured], peer: Mapping[str, Measured]) -> dict[str, Measured]:
    """How many times faster we are, and our share of the peer's memory."""
    names = {"generation_s": "generation_ratio", "training_s": "training_ratio", "decode_ms": "decode_ratio"}
    found = {name: ratio(peer[key], ours[key]) for key, name in names.items() if key in ours and key in peer}
    found["ratio"] = ratio(peer[f"{suite}_s"], ours[f"{suite}_s"])
    found["peak_ratio"] = Measured([median(ours["peak_mb"].values) / median(peer["peak_mb"].values)], "x")
    return found
