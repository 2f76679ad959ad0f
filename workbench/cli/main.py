"""The command `workbench`: declarations only; the work, and every heavy import, is in the files beside this one.

Exit status 0 when the thing asked for was done, 1 for an error told in one sentence on stderr, 2 for a wrong command
line, 128 + n after signal n. `WORKBENCH_DEBUG=1` shows the traceback of an error that has a sentence.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from workbench.cli.bench_command import bench, gpu_check
from workbench.cli.common import Interrupted, Json, find_run, print_json, read_settings, settings_help
from workbench.config import ROOT, Config
from workbench.sandbox.records import Limits
from workbench.types import WorkbenchError

app = typer.Typer(
    name="workbench",
    help="Train an LLM code agent with reinforcement learning and watch it learn.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
)
tasks_app = typer.Typer(help="The embedded tasks, and yours.", rich_markup_mode=None)
app.add_typer(tasks_app, name="tasks")

DEFAULTS = Config()
LIMITS = Limits()
RunPath = Annotated[str, typer.Argument(metavar="RUN", help="Folder of a run, or its name below runs/.")]


@app.command()
def lab(
    notebook: Annotated[str, typer.Argument(help="Notebook to open.")] = "04_training",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8888,
    browser: Annotated[bool, typer.Option(help="Open a browser.")] = True,
) -> None:
    """JupyterLab on the notebooks."""
    from workbench.cli.lab import lab as work

    work(notebook, port=port, browser=browser)


@app.command()
def notebook(
    name: Annotated[str, typer.Argument(metavar="NAME|PATH")],
    parameter: Annotated[
        list[str] | None, typer.Option("-p", metavar="KEY VALUE", help="A parameter of the notebook; repeat it.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the executed notebook.")] = Path("out"),
) -> None:
    """Run a notebook in batch, with the names and types of its parameters checked."""
    from workbench.cli.notebook import run, split_parameters

    run(name, split_parameters(parameter or []), out)


@app.command(epilog=settings_help())
def train(
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="YAML or JSON file of settings.")] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting; repeat it.")
    ] = None,
    run: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the run; default: a new one in runs/.")
    ] = None,
    json: Json = False,
) -> int:
    """Train without a notebook; the last line on stdout is the summary as JSON."""
    from workbench.cli.train import train as work

    return work(read_settings(config, setting or []), run)


@app.command()
def resume(
    run: RunPath,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Another length of the run; learning rate and rho follow it from there.")
    ] = None,
    json: Json = False,
) -> int:
    """Go on with a run from its last checkpoint, exactly."""
    from workbench.cli.train import resume as work

    return work(find_run(run), steps)


@app.command()
def evaluate(
    subject: Annotated[
        str, typer.Argument(metavar="RUN|POLICY", help="A run, or 'tiny', a hub id, a folder, a GGUF file.")
    ],
    tasks: Annotated[
        str | None, typer.Option(metavar="GLOB", help="Task ids or globs; default: those kept out.")
    ] = None,
    attempts: Annotated[int, typer.Option(min=1, max=10_000, help="Attempts per task.")] = 8,
    budget: Annotated[int, typer.Option(min=1, max=10_000, help="Agent steps per attempt.")] = 10,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    json: Json = False,
) -> None:
    """Measure a policy by whole attempts, graded once each."""
    from workbench.cli.evaluate import evaluate as work
    from workbench.cli.evaluate import show

    result = work(subject, tasks, attempts, budget, seed)
    if json:
        print_json(result)
    else:
        show(result)


@app.command()
def report(
    run: RunPath,
    out: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Default: report.html in the run.")] = None,
) -> None:
    """Write the report of a run: one file that opens offline."""
    from workbench.cli.report import report as work

    print(work(find_run(run), out))


@tasks_app.command("list")
def list_tasks(json: Json = False) -> None:
    """The embedded tasks."""
    from workbench.cli.tasks import list_tasks as work
    from workbench.cli.tasks import show_list

    rows = work()
    if json:
        print_json({"tasks": rows})
    else:
        show_list(rows)


@tasks_app.command("check")
def check_tasks(
    task: Annotated[
        list[str] | None, typer.Argument(metavar="PATH|ID|GLOB", help="Default: the embedded tasks.")
    ] = None,
    json: Json = False,
) -> int:
    """Every task proves itself: gold is best, the sample is valid, a constant gets the floor, and more."""
    from workbench.cli.tasks import check, show_check, tell_failures

    results = check(task or [])
    if not json:
        show_check(results)
    status = tell_failures(results)
    if json:
        print_json({"ok": status == 0, "tasks": results})
    return status


@app.command()
def grade(
    task: Annotated[str, typer.Argument(metavar="TASK", help="Id or folder of a task.")],
    submission: Annotated[Path, typer.Argument(metavar="SUBMISSION.csv")],
    json: Json = False,
) -> None:
    """Grade a submission; the fields are mle-bench's, and `reason` where it is invalid (which is a grade: status 0)."""
    from workbench.cli.grade import grade as work
    from workbench.cli.grade import show_grade

    result = work(task, submission)
    if json:
        print_json(result)
    else:
        show_grade(result)


@app.command("exec")
def execute(
    program: Annotated[Path, typer.Argument(metavar="PROGRAM.py")],
    stdin: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What it reads; - or nothing named: what is piped in.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--input", metavar="DIR", help="Folder that it sees as ./input, read-only.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where the submission.csv that it writes is kept.")
    ] = None,
    thin: Annotated[
        bool, typer.Option("--thin", help="Preload no pandas and scikit-learn: starts over a second sooner.")
    ] = False,
    cpu: Annotated[float, typer.Option(metavar="S", help="CPU seconds, of all its processes.")] = LIMITS.cpu_s,
    wall: Annotated[float, typer.Option(metavar="S", help="Wall seconds.")] = LIMITS.wall_s,
    memory: Annotated[int, typer.Option(metavar="MB", help="Memory of all its processes.")] = LIMITS.memory_mb,
    processes: Annotated[int, typer.Option(metavar="N", help="Processes and threads at once.")] = LIMITS.processes,
    output: Annotated[int, typer.Option(metavar="KB", help="Kept of stdout; more ends it.")] = LIMITS.output_kb,
    disk: Annotated[int, typer.Option(metavar="MB", help="Size of its folder.")] = LIMITS.files_mb,
    min_level: Annotated[
        str, typer.Option(metavar="B|C|D|E", help="Weakest isolation level accepted.")
    ] = DEFAULTS.min_level,
    unsafe_executor: Annotated[bool, typer.Option("--unsafe-executor", help="Accept isolation level E.")] = False,
    json: Json = False,
) -> int:
    """Run a program in the sandbox; exit status 0 only when it ended well.

    It gets no arguments: what it needs comes on stdin or by --input. A pipe into this command is read to its end.
    """
    from workbench.cli.exec import execute as work
    from workbench.cli.exec import show, status

    amounts = {"cpu": cpu, "wall": wall, "memory": memory, "processes": processes, "output": output, "disk": disk}
    given: dict[str, Any] = {"stdin": stdin, "folder": folder, "save": save, "thin": thin}
    result = work(program, amounts, **given, min_level=min_level, unsafe=unsafe_executor)
    if json:
        print_json(result)
    else:
        show(result)
    return status(result)


@app.command()
def warmstart(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the policy is written.")] = ROOT / "data" / "policy",
    json: Json = False,
) -> None:
    """Rebuild the tiny policy (up to 90 minutes on 2 cores)."""
    from workbench.cli.warmstart import warmstart as work

    facts = work(out)
    if json:
        print_json(facts)
    else:
        print(out)


@app.command()
def doctor(json: Json = False) -> int:
    """Device, dtype probe, isolation level and what is missing, versions, writable paths."""
    from workbench.cli.doctor import examine, show

    found = examine()
    if json:
        print_json(found)
    else:
        show(found)
    return 0 if found["ok"] else 1


app.command()(bench)
app.command("gpu-check")(gpu_check)


class Terminated(BaseException):
    """SIGTERM, so that what is open is closed on the way out."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: run one command and exit with its status."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed before we began
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    sys.exit(run_command(list(sys.argv[1:] if arguments is None else arguments)))


def run_command(arguments: list[str]) -> int:
    """Run one command line; returns the exit status, with errors told on stderr."""
    command = typer.main.get_command(app)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminate)
    try:
        with command.make_context("workbench", join_parameters(arguments) or ["--help"]) as context:
            status = command.invoke(context)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except typer.TyperException as error:
        return _tell(_usage(error, arguments), status=getattr(error, "exit_code", 2))
    except typer.Exit as error:
        return error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return _tell("Interrupted.", status=130)
    except Terminated:
        return _tell("Terminated.", status=143)
    except Interrupted as error:
        return _tell(str(error), status=128 + error.number)
    except WorkbenchError as error:
        return _tell(str(error))
    except BrokenPipeError:  # the reader of our output has left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        where = f"'{error.filename}': " if error.filename else ""
        return _tell(f"{where}{error.strerror or error}.")


def _usage(error: typer.TyperException, arguments: Sequence[str]) -> str:
    """One sentence for a wrong command line: what is wrong, the value given, where to look."""
    message = error.format_message().splitlines()[0].rstrip(".").replace("Value error, ", "")
    message += "" if message.endswith("?") else "."
    names = getattr(getattr(error, "param", None), "opts", ())
    given = next((arguments[n + 1] for n, word in enumerate(arguments[:-1]) if word in names), None)
    if given is not None and isinstance(error, typer.BadParameter) and repr(given) not in message:
        message = f"{message[:-1]} (given: {given!r})."
    context = getattr(error, "ctx", None)
    return f"{message} See `{context.command_path if context else 'workbench'} --help`."


def join_parameters(arguments: list[str]) -> list[str]:
    """`-p key value` → `-p key=value`: an option of two words is not known to the parser."""
    if arguments[:1] != ["notebook"]:
        return arguments
    joined: list[str] = []
    rest = iter(arguments)
    for word in rest:
        joined.append(word)
        if word == "-p" and (name := next(rest, None)) is not None:
            value = None if "=" in name else next(rest, None)
            joined.append(name if value is None else f"{name}={value}")
    return joined


def _terminate(number: int, frame: object) -> None:
    raise Terminated


def _tell(sentence: str, status: int = 1) -> int:
    if os.environ.get("WORKBENCH_DEBUG") == "1":
        traceback.print_exc()
    print(sentence, file=sys.stderr, flush=True)
    return status
