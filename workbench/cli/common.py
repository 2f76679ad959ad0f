"""What the commands share: one JSON object last on stdout, settings from a file and from key=value, finding a run."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from workbench.config import ROOT, Config, knobs, make_config, parse_settings
from workbench.types import WorkbenchError

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, last on stdout.")]

CODE = ("workbench", "notebooks", "data/tasks", "pyproject.toml")
"""What decides how a run comes out."""


class Interrupted(WorkbenchError):
    """What the command waited for was ended by signal `number`: exit status 128 + number."""

    def __init__(self, sentence: str, number: int) -> None:
        super().__init__(sentence)
        self.number = number


def print_json(value: Mapping[str, Any]) -> None:
    """One JSON object in one line on stdout; numbers that JSON lacks are null."""
    print(json.dumps(_finite(value), default=str), flush=True)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(name): _finite(item) for name, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def say(text: str) -> None:
    """A line for the person at the terminal; stdout is for results."""
    print(text, file=sys.stderr, flush=True)


def given_options(context: Any) -> list[str]:
    """The options of a command that its user wrote, as `--name`, in the order of its help."""
    written = [one for one in context.command.params if context.get_parameter_source(one.name).name == "COMMANDLINE"]
    return [one.opts[0] for one in written if one.opts[0].startswith("--")]


def read_settings(file: Path | None, pairs: Sequence[str]) -> Config:
    """The settings of a YAML or JSON file, with key=value pairs over them."""
    return make_config({**(_mapping(file) if file else {}), **parse_settings(pairs)})


def _mapping(file: Path) -> dict[str, Any]:
    content = read_yaml(file, "--config takes a YAML or JSON file of settings", "settings")
    if isinstance(content.get("config"), dict):
        content = content["config"]  # the config.json of a run
    return {str(name): value for name, value in content.items()}


def read_yaml(file: Path, wanted: str, what: str) -> dict[Any, Any]:
    """The mapping in a YAML or JSON file; empty for an empty file. Raises WorkbenchError for anything else, where
    `wanted` is the remedy and `what` names what was expected."""
    import yaml

    try:
        text = file.read_text(encoding="utf-8")
        content = yaml.safe_load(text)
        twice = _doubled(yaml.compose(text, yaml.SafeLoader))
    except FileNotFoundError:
        raise WorkbenchError(f"'{file}' does not exist: {wanted}.") from None
    except OSError as error:
        raise WorkbenchError(f"'{file}' cannot be read ({error.strerror}): {wanted}.") from None
    except RecursionError:
        raise WorkbenchError(f"'{file}' is nested too deeply: write one `key: value` per line.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        first = str(error).splitlines()[0]
        if (mark := getattr(error, "problem_mark", None)) is not None:
            first += f", line {mark.line + 1}"
        raise WorkbenchError(f"'{file}' is no YAML or JSON ({first}): write one `key: value` per line.") from None
    except (ValueError, LookupError, AttributeError, ArithmeticError) as error:  # of what it reads as dates and numbers
        raise WorkbenchError(
            f"'{file}' holds a date or number that does not exist ({error}): mend it, or put it in quotes."
        ) from None
    if twice:
        raise WorkbenchError(f"'{file}' sets '{twice}' twice: leave one of them out.")
    if content is None:
        return {}
    if not isinstance(content, dict):
        kind = type(content).__name__
        raise WorkbenchError(f"'{file}' holds a {kind}, not {what}: write one `key: value` per line.")
    return content


def _doubled(node: Any) -> str | None:
    """The first key that a YAML mapping, or one in it, holds twice: the loader would take the last silently."""
    if not hasattr(node, "value") or isinstance(node.value, str):
        return None
    pairs = [pair for pair in node.value if isinstance(pair, tuple)]
    names = [key.value for key, _ in pairs]
    doubled = [name for place, name in enumerate(names) if name in names[:place]]
    inner = (_doubled(value) for _, value in pairs)
    return doubled[0] if doubled else next(filter(None, inner), None)


def last_json(file: Path) -> dict[str, Any]:
    """The JSON object in the last line of a command's output; empty where there is none."""
    lines = file.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    with suppress(ValueError, RecursionError):
        found = json.loads(lines[-1] if lines else "")
        return found if isinstance(found, dict) else {}
    return {}


def read_kept(file: Path, fits: Callable[[Mapping[str, Any]], bool], what: str, remedy: str) -> dict[str, Any]:
    """The JSON object that a command kept in a file. Raises WorkbenchError where it is damaged: no object, or one that
    does not fit."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not fits(found):
        raise WorkbenchError(f"'{file}' is damaged, expected {what}: {remedy}.")
    return found


def is_number(value: Any) -> bool:
    """Whether what was kept is a finite number of at least 0."""
    return isinstance(value, int | float) and 0 <= value < 1e15


def describe() -> str:
    """The commit of this checkout, with `-dirty` where code differs from it, as a batch's own results do not; ""
    without git."""
    git = ["git", "-C", str(ROOT)]
    try:
        commit = subprocess.run([*git, "describe", "--always", "--tags"], capture_output=True, text=True, timeout=30)
        changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", *CODE], timeout=30, capture_output=True)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return commit.stdout.strip() + ("-dirty" if commit.stdout and changed.returncode else "")


def settings_help() -> str:
    """The table of settings for `--help`, one line each; `\\b` keeps the lines."""
    live = knobs()
    lines = []
    for name, field in Config.model_fields.items():
        mark = "*" if name in live else " "
        choices = "" if get_origin(field.annotation) is not Literal else f" {', '.join(get_args(field.annotation))}."
        lines.append(f" {mark}{name + '=' + str(field.default):<32} {field.description}{choices}")
    return "\b\nSettings for --set and --config (* may be changed while a run goes on):\n" + "\n".join(lines)


def find_run(text: str) -> Path:
    """A run by its folder, or by its name below `runs/`."""
    path = Path(text)
    if not path.exists() and (ROOT / "runs" / text / "config.json").exists():
        return ROOT / "runs" / text
    return path


def is_run(path: Path) -> bool:
    """Whether a folder is a run rather than a model."""
    return (path / "config.json").is_file() and (path / "run.sqlite").exists()


def environment_path() -> dict[str, str]:
    """The environment for a process we start, with this interpreter's own tools and kernels before the user's."""
    own = str(Path(sys.executable).parent)
    path = os.environ.get("PATH", "")
    return {**os.environ, "PATH": f"{own}{os.pathsep}{path}", "JUPYTER_PREFER_ENV_PATH": "1"}
