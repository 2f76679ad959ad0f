"""What `workbench` answers to a wrong command line, an error and a signal; and how `-p key value` is read."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

import typer


class Terminated(BaseException):
    """SIGTERM, so that what is open is closed on the way out."""


def usage(error: typer.TyperException, arguments: Sequence[str]) -> str:
    """One sentence for a wrong command line: what is wrong, the value given, where to look."""
    lines = error.format_message().splitlines()
    words = lines if lines[0].endswith("Choose from:") else lines[:1]
    message = " ".join(line.strip() for line in words).rstrip(".").replace("Value error, ", "")
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


def terminate(number: int, frame: object) -> None:
    """Handler of SIGTERM."""
    raise Terminated


def tell(sentence: str, status: int = 1) -> int:
    """A sentence on stderr; returns the exit status."""
    if os.environ.get("WORKBENCH_DEBUG") == "1":
        traceback.print_exc()
    print(sentence, file=sys.stderr, flush=True)
    return status
