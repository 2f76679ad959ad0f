"""Declarations of `workbench tasks` and `workbench grade`; the work is in tasks.py and grade.py beside this file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from workbench.cli.common import Json, given_options, print_json
from workbench.types import WorkbenchError

tasks_app = typer.Typer(help="The embedded tasks, yours, and mle-bench's.", rich_markup_mode=None)
Names = Annotated[list[str] | None, typer.Argument(metavar="PATH|ID|GLOB", help="Default: the embedded tasks.")]


class Missing(typer.TyperException):
    """An argument that this form of a command needs is not there."""

    exit_code = 2

    def __init__(self, message: str, context: typer.Context) -> None:
        super().__init__(message)
        self.ctx = context


@tasks_app.command("list")
def list_tasks(task: Names = None, json: Json = False) -> None:
    """The tasks: embedded ones, or those named."""
    from workbench.cli.tasks import list_tasks as work
    from workbench.cli.tasks import show_list

    rows = work(task or ["all"])
    if json:
        print_json({"tasks": rows})
    else:
        show_list(rows)


@tasks_app.command("check")
def check_tasks(task: Names = None, json: Json = False) -> int:
    """Every task proves itself: gold is best, the sample is valid, a constant gets the floor, and more."""
    from workbench.cli.tasks import check, show_check, tell_failures

    results = check(task or [])
    if not json:
        show_check(results)
    status = tell_failures(results)
    if json:
        print_json({"ok": status == 0, "tasks": results})
    return status


def grade(
    context: typer.Context,
    task: Annotated[
        str | None, typer.Argument(metavar="TASK", help="Id or folder of a task; with --jsonl: the folder of many.")
    ] = None,
    submission: Annotated[Path | None, typer.Argument(metavar="SUBMISSION.csv")] = None,
    jsonl: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Many: one {competition_id, submission_path} per line.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="With --jsonl: write <timestamp>_grading_report.json there.")
    ] = None,
    aggregate: Annotated[
        list[Path] | None, typer.Option(metavar="REPORT.json", help="Average such reports over seeds; repeat it.")
    ] = None,
    split: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --aggregate: the competition ids, one per line.")
    ] = None,
    pad_missing: Annotated[
        bool, typer.Option(help="With --aggregate: a run that is missing counts as failed.")
    ] = False,
    json: Json = False,
) -> None:
    """Grade a submission; the fields are mle-bench's, with `reason` where it is invalid (which is a grade: status 0)
    and `grader`, whose code scored it. Or grade many, or average the reports of several seeds, as mle-bench does."""
    from workbench.cli.grade import aggregate as average
    from workbench.cli.grade import grade as work
    from workbench.cli.grade import grade_many, show_aggregate, show_grade, show_many

    _refuse_unused(context, "--aggregate" if aggregate else "--jsonl" if jsonl is not None else "")
    if aggregate:
        result, show = average(aggregate, split, pad_missing), show_aggregate
    elif jsonl is not None:
        result, show = grade_many(jsonl, task, out), show_many
    elif task is None or submission is None:
        missing = "TASK" if task is None else "SUBMISSION.csv"
        raise Missing(f"Missing argument '{missing}'.", context)
    else:
        result, show = work(task, submission), show_grade
    if json:
        print_json(result)
    else:
        show(result)


_USES = {
    "": ("task", "submission"),
    "--jsonl": ("task", "--jsonl", "--out"),
    "--aggregate": ("--aggregate", "--split", "--pad-missing"),
}


def _refuse_unused(context: typer.Context, what: str) -> None:
    """Raise WorkbenchError for what was written and says nothing to this kind of grading."""
    arguments = [name for name in ("task", "submission") if context.params.get(name) is not None]
    for name in [*arguments, *given_options(context)]:
        if name not in (*_USES[what], "--json"):
            of = f"with {what}" if what else "of one submission"
            raise WorkbenchError(f"{name.upper() if name in arguments else name} says nothing {of}: leave it out.")
