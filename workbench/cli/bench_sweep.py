"""`workbench bench step --sweep`: the time of a step over group sizes and prompt lengths, as a table and as a plot."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from workbench.cli.bench import Measured, Tell
from workbench.cli.bench_models import WARM, open_sides, probe
from workbench.cli.bench_sides import Side
from workbench.cli.bench_trl import micro_batches
from workbench.cli.bench_work import Workload
from workbench.config import ROOT
from workbench.types import WorkbenchError

GROUP_SIZES = (2, 4, 8, 16, 32)
PROMPTS = (128, 512, 2048)
PEER_STEP_S = 300.0
"""A step of the peer that is expected to take longer is left out."""
TABLE = ROOT / "data" / "results" / "bench_step.csv"
PLOT = ROOT / "docs" / "images" / "bench-step.svg"
KINDS = ("step_s", "generation_s", "training_s")
FIELDS = (
    "policy dtype adapter prompts prompt_tokens group_size completion_tokens "
    "step_s generation_s training_s peer peer_micro_batch peer_step_s peer_generation_s peer_training_s"
).split()

Row = dict[str, Any]


def sweep(
    work: Workload,
    repeats: int,
    against: str | None,
    tell: Tell,
    *,
    group_sizes: Sequence[int] = GROUP_SIZES,
    prompts: Sequence[int] = PROMPTS,
    table: Path = TABLE,
    plot: Path = PLOT,
) -> tuple[dict[str, Any], dict[str, Measured]]:
    """Medians of `repeats` steps of every size that the model can take; written to `table` and `plot`."""
    rows: list[Row] = []
    for target in (table, plot):
        _try_to_write(target)
    with ExitStack() as stack:
        ours, peer, facts = open_sides(stack, work, against, tell)
        longest = ours.facts["max_positions"] or max(prompts) + work.completion_tokens
        fitting = [length for length in prompts if length + work.completion_tokens <= longest]
        if left := [length for length in prompts if length not in fitting]:
            tell(f"left out: prompts of {', '.join(map(str, left))} tokens, the model has {longest} positions")
        tell("warming up")
        ours.ask(do="step", number=WARM)
        probed = probe(peer, work, "step", tell) if peer else None
        pace = 0.0  # seconds of the peer per token, from its last size
        for length, size in product(fitting, group_sizes):
            here = replace(
                work, dtype=ours.facts["dtype"], adapter=ours.facts["adapter"], prompt_tokens=length, group_size=size
            )
            row = _described(here) | _medians([ours.ask(do="step", number=n, work=here) for n in range(repeats)])
            if peer and probed and pace * here.rows * here.row_tokens <= PEER_STEP_S:
                theirs, micro = _peer(peer, here, repeats, probed.fastest * work.row_tokens, probed.autocast)
                row |= {"peer": against, "peer_micro_batch": micro} | {f"peer_{k}": v for k, v in theirs.items()}
                pace = theirs["step_s"] / (here.rows * here.row_tokens)
            rows.append(row)
            tell(_line(row, len(rows), len(fitting) * len(group_sizes)))
            write_table(rows, table)
    plot.write_text(draw(rows), encoding="utf-8")
    facts["written"] = {"table": str(table), "plot": str(plot)}
    return facts, _results(rows)


def _try_to_write(target: Path) -> None:
    new = not target.exists()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.open("a").close()
        if new:
            target.unlink()
    except OSError as error:
        raise WorkbenchError(
            f"'{target}' cannot be written ({error.strerror}), and the sweep ends there: make it writable first."
        ) from None


def _peer(peer: Side, here: Workload, repeats: int, tokens: int, autocast: bool) -> tuple[dict[str, float], int]:
    """TRL's medians, with the micro-batch whose tokens are nearest to the fastest one found."""
    micro = min(micro_batches(here.rows), key=lambda size: abs(size * here.row_tokens - tokens))
    message = {"do": "step", "micro": micro, "autocast": autocast, "work": here}
    return _medians([peer.ask(number=n, **message) for n in range(repeats)]), micro


def _medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    whole = [{**each, "step_s": each["generation_s"] + each["training_s"]} for each in rounds]
    return {kind: round(median(each[kind] for each in whole), 4) for kind in KINDS}


def _described(work: Workload) -> Row:
    return {name: value for name, value in work.described().items() if name in FIELDS} | {
        "policy": Path(work.policy).name
    }


def _line(row: Row, done: int, count: int) -> str:
    other = f", TRL {row['peer_step_s']:.4g} s" if "peer_step_s" in row else ""
    size = f"prompts of {row['prompt_tokens']}, groups of {row['group_size']}"
    return f"{done} of {count}: {size}: ours {row['step_s']:.4g} s{other}"


def _results(rows: Sequence[Row]) -> dict[str, Measured]:
    found = {}
    for row in rows:
        name = f"prompt{row['prompt_tokens']}_group{row['group_size']}"
        found[f"{name}_step_s"] = Measured([row["step_s"]], "s")
        if "peer_step_s" in row:
            found[f"{name}_peer_step_s"] = Measured([row["peer_step_s"]], "s")
            found[f"{name}_ratio"] = Measured([row["peer_step_s"] / row["step_s"]], "x")
    return found


def write_table(rows: Sequence[Row], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def draw(rows: Sequence[Row]) -> str:
    """The plot as SVG: one panel per prompt length, seconds of a step over the group size."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    from workbench.views.svg import to_svg

    lengths = sorted({row["prompt_tokens"] for row in rows})
    figure = make_subplots(rows=1, cols=len(lengths), subplot_titles=[f"prompts of {n} tokens" for n in lengths])
    lines = (
        ("workbench", "step_s", "#0072b2", "circle", "solid"),
        ("TRL", "peer_step_s", "#d55e00", "square", "dash"),
    )
    for place, length in enumerate(lengths, 1):
        for name, key, color, symbol, dash in lines:
            points = [(row["group_size"], row[key]) for row in rows if row["prompt_tokens"] == length and key in row]
            if points:
                x, y = zip(*points, strict=True)
                style = {"line": {"color": color, "dash": dash}, "marker": {"symbol": symbol}}
                trace = go.Scatter(x=x, y=y, name=name, mode="lines+markers", **style)
                figure.add_trace(trace, row=1, col=place)
        figure.update_xaxes(title_text="completions per prompt", row=1, col=place)
        figure.update_yaxes(title_text="seconds per step", row=1, col=place)
    height = 300 * -(-len(lengths) // 2)
    return to_svg(figure, height=height, label="Seconds of a training step over group size and prompt length")
