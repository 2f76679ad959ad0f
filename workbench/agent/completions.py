"""From a completion back to a script, and from a script's output to the score it printed of itself: no model, no guess.

Texts of any policy come here, so nothing in them may raise, and equal texts give equal results.
"""

from __future__ import annotations

import ast
import math
import re
import warnings
from collections.abc import Iterator
from itertools import islice

PYTHON = ("python", "py", "python3", "py3", "ipython", "")
"""Languages of a fenced block that may hold the script."""

_FENCE = re.compile(r"^([ \t]*)(`{3,}|~{3,})[ \t]*(\{?\.?([\w+-]*)[^`\n]*)$", re.MULTILINE)
_STATEMENT = re.compile(
    r"import\s+[\w.]+\s*(?:$|[,;#]|as\b)|from\s+[\w.]+\s+import\b|(?:def|class)\s+\w+\s*[(:]|@\w|try\s*:"
    r"|[\w.]+(?:\[.*?\])?(?:\s*,\s*[\w.]+)*\s*=(?!=)|\w[\w.]*\("
)
"""How a line of Python begins and a sentence does not, though the line may have a syntax error later on."""

_WRITES = re.compile(r"\.to_csv\(|\bopen\([^)\n]*['\"][wax]|\.write_(?:text|bytes|csv)\(|\bsavetxt\(")
"""A call that writes a file."""

MAX_CLOSERS = 16
"""Closing fences that are tried for one block, where the script has fences inside its strings."""


def parse_code(text: str) -> str | None:
    """The script of a completion, with line ends of one kind: its ```python or ~~~python block, or bare code.

    Thoughts of a reasoning model (up to `</think>`) hold no answer. Of several blocks that are Python, and say so if
    one does, the last that writes a file is taken, else the last that names `submission`, else the last; where none is
    Python, the first. A fence that is never closed runs to the end. None when there is nothing that looks like code; a
    script with a syntax error is returned, runs, and fails as such.
    """
    text = _without_thoughts(text.replace("\r\n", "\n"))
    blocks = list(_fenced(text))
    if not blocks:
        return text.strip() + "\n" if _bare_code(text) else None
    python = [body for language, body in blocks if language.lower() in PYTHON]
    labelled = [body for language, body in blocks if language and language.lower() in PYTHON]
    if any(map(_acts, labelled)):  # what else is fenced may be output, or the name of a file
        python = labelled
    candidates = [body for body in python or [body for _, body in blocks] if body.strip()]
    if not candidates:
        return None
    whole = [body for body in candidates if _acts(body)] or [body for body in candidates if is_python(body)]
    chosen = next((body for body in reversed(whole) if "submission" in body and _WRITES.search(body)), None)
    chosen = chosen or next((body for body in reversed(whole) if "submission" in body), None)
    return (chosen or (whole[-1] if whole else candidates[0])).strip("\n") + "\n"


def _without_thoughts(text: str) -> str:
    """What follows the thoughts. A completion that was cut in the middle of them has no answer.

    Some templates put `<think>` into the prompt, so that only its end is in the completion; a tag inside a fenced block
    or in a script of its own is text like any other.
    """
    start = text.lstrip()
    if start.startswith("<think>"):
        return start.partition("</think>")[2]
    before, tag, after = text.partition("</think>")
    if not tag or is_python(text) or _open_fence(before):
        return text
    return after


def _open_fence(text: str) -> bool:
    opened = ""
    for match in _FENCE.finditer(text):
        if not opened:
            opened = match.group(2)
        elif _closes(match, opened):
            opened = ""
    return bool(opened)


def _closes(match: re.Match[str], opened: str) -> bool:
    """Whether a fence ends a block that `opened` began: of the same sign, at least as long, with nothing behind it."""
    fence = match.group(2)
    return fence[0] == opened[0] and len(fence) >= len(opened) and not match.group(3).strip()


def _fenced(text: str) -> Iterator[tuple[str, str]]:
    """(language, body) of each block, the fence's own indentation taken off its lines.

    A block ends at its first closing fence, or, where it is no Python up to there, at the first of the next ones up to
    which it is: a script may hold fences in its strings.
    """
    fences = list(_FENCE.finditer(text))
    place = 0
    while place < len(fences):
        opening = fences[place]
        begin, language = opening.end() + 1, opening.group(4)
        closing = (n for n in range(place + 1, len(fences)) if _closes(fences[n], opening.group(2)))
        closers = list(islice(closing, MAX_CLOSERS))
        bodies = [_dedented(text[begin : fences[n].start()], opening.group(1)) for n in closers]
        if not bodies:
            yield language, _dedented(text[begin:], opening.group(1))
            return
        chosen = 0
        if len(bodies) > 1 and language.lower() in PYTHON:
            chosen = next((n for n, body in enumerate(bodies) if is_python(body)), 0)
        yield language, bodies[chosen]
        place = closers[chosen] + 1


def _dedented(body: str, indent: str) -> str:
    """Without the indentation that a fence in a list item has; untouched where a line has less."""
    lines = body.split("\n")
    if not indent or any(line.strip() and not line.startswith(indent) for line in lines):
        return body
    return "\n".join(line.removeprefix(indent) for line in lines)


def _bare_code(text: str) -> bool:
    """Whether a text without fences is a script: all of it is Python that does something, or its first line is.

    Prose has lines that begin with "for" or "#" too, and one word alone is an expression.
    """
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if line and not line.startswith("#")), "")
    return bool(_STATEMENT.match(first)) or any(map(_acts, (text, first, first + " pass")))


def _acts(code: str) -> bool:
    """Whether this is Python with more in it than comments and values."""
    tree = _parsed(code)
    return tree is not None and any(not isinstance(n, ast.Expr) or isinstance(n.value, ast.Call) for n in tree.body)


def is_python(code: str) -> bool:
    """Whether a text compiles as a Python script."""
    return _parsed(code) is not None


def _parsed(code: str) -> ast.Module | None:
    """The tree of a script; None when it does not compile."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code)
            compile(tree, "<action>", "exec")
            return tree
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return None


_SCORE = re.compile(
    r"^\s*(?:final )?validation score\s*[:=]\s*([-+]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?|nan|inf(?:inity)?))\s*$",
    re.IGNORECASE,
)


LONGEST_SCORE = 200
"""Characters of a line with a score; what is longer is something else, and no pattern is to be tried on it."""


def parse_own_score(stdout: str) -> float | None:
    """The number of the last line `Validation score: <float>`, alone on its line.

    None without such a line, and where the last one says nan or inf: an earlier number is not what the script ended
    with.
    """
    for line in reversed(stdout.splitlines()):
        match = _SCORE.match(line) if len(line) <= LONGEST_SCORE else None
        if match:
            value = float(match.group(1))
            return value if math.isfinite(value) and abs(value) < 1e300 else None
    return None
