"""The command `workbench evaluate`: its declaration only, as in main.py."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from workbench.cli.common import Json, print_json
from workbench.types import WorkbenchError

ATTEMPTS = 8


def evaluate(
    subject: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN|POLICY…",
            help="A run, or 'tiny', a hub id, a folder, a GGUF file. Several runs: seeds of one experiment.",
        ),
    ],
    tasks: Annotated[
        str | None, typer.Option(metavar="GLOB", help="Task ids or globs; default: those kept out.")
    ] = None,
    attempts: Annotated[
        int | None, typer.Option(min=1, max=10_000, help=f"Attempts per task; default {ATTEMPTS}.", show_default=False)
    ] = None,
    budget: Annotated[
        int, typer.Option(min=1, max=10_000, help="Agent steps per attempt; 32 gives the whole curve.")
    ] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Of the first run; the next have the following.")] = 0,
    against: Annotated[
        str | None,
        typer.Option(metavar="RUN|POLICY", help="Compare pair by pair with another, or 'start': before training."),
    ] = None,
    baseline: Annotated[
        bool, typer.Option("--baseline", help="Compare with the best fixed script, chosen on the training tasks.")
    ] = False,
    scripts: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Candidates of --baseline instead of the embedded and the run's.")
    ] = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="Take the likeliest token always; one attempt.")] = False,
    figure: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Draw the score against the budget.")] = None,
    keep: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep what each policy came to here; asked again, go on from there."),
    ] = None,
    json: Json = False,
) -> None:
    """Measure a policy by whole attempts, graded once each."""
    if greedy and attempts not in (None, 1):
        raise WorkbenchError(f"--attempts {attempts} with --greedy would be {attempts} equal attempts: leave one out.")
    _check_paths(baseline, scripts, figure, keep)
    from workbench.cli.evaluate import Plan, draw
    from workbench.cli.evaluate import evaluate as work

    plan = Plan(1 if greedy else attempts or ATTEMPTS, budget, seed, greedy)
    result = work(subject, tasks, plan, against=against, baseline=baseline, scripts=scripts, keep=keep)
    if json:
        print_json(result)
    else:
        from workbench.cli.evaluate_tables import show

        show(result)
    if figure is not None:
        draw(result, figure)


def _check_paths(baseline: bool, scripts: Path | None, figure: Path | None, keep: Path | None) -> None:
    """Raise WorkbenchError for what cannot be read or written, before hours are spent."""
    if scripts is not None and not (baseline and scripts.is_dir()):
        wanted = "expected a folder of scripts *.py" if baseline else "it is read for --baseline, add that"
        raise WorkbenchError(f"--scripts '{scripts}' is not accepted: {wanted}.")
    if figure is not None and not figure.parent.is_dir():
        raise WorkbenchError(f"The figure '{figure}' cannot be written: its folder does not exist, make it first.")
    if figure is not None and figure.exists() and not figure.is_file():
        raise WorkbenchError(f"The figure '{figure}' is no file: name one with --figure FILE.svg.")
    if keep is not None:
        try:
            keep.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise WorkbenchError(f"--keep '{keep}' cannot be made ({error.strerror}): choose another folder.") from None
