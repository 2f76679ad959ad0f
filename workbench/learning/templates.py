"""What scripts have in common: how many ways of writing a policy knows, and how often it takes the commonest.

Two scripts have one template when their Python tokens agree after

- comments, blank lines and line breaks inside brackets are dropped;
- every string becomes one mark, every number another, whatever stands in them;
- names of the task's columns (`train.price`, `groupby(price=…)`) become the mark of strings;
- strings that follow each other in a list, separated by commas, become one, so that the number of columns named in a
  script does not matter.

What is imported, called and named by the script itself stays. The rule is ours.
"""

from __future__ import annotations

import hashlib
import io
import tokenize
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from workbench.tasks.task import Task, stamp

TEXT, NUMBER = "'…'", "0"

_DROPPED = (tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER)
_LAYOUT = (tokenize.INDENT, tokenize.DEDENT, tokenize.NEWLINE)
_FSTRING = {name: getattr(tokenize, name, -1) for name in ("FSTRING_START", "FSTRING_END")}
"""From Python 3.12 on an f-string is several tokens."""


def template(code: str, columns: Collection[str] = ()) -> str:
    """A short name that is equal for scripts of one template; `columns` are the names in the task's files.

    Text that is no Python has the template of its tokens up to the place where they end.
    """
    tokens = _without_runs(_marks(code, frozenset(columns)))
    return hashlib.sha256("\0".join(tokens).encode("utf-8", "surrogatepass")).hexdigest()[:12]


def _marks(code: str, columns: frozenset[str]) -> list[str]:
    marks: list[str] = []
    depth = 0  # within f-strings, one in another
    try:
        for token in tokenize.generate_tokens(io.StringIO(code.strip() + "\n").readline):
            if token.type == _FSTRING["FSTRING_START"]:
                depth += 1
                marks += [TEXT] if depth == 1 else []
            elif token.type == _FSTRING["FSTRING_END"]:
                depth -= 1
            elif not depth and token.type not in _DROPPED:
                marks.append(_mark(token, columns))
    except (tokenize.TokenError, SyntaxError):
        marks.append("…")
    return marks


def _mark(token: tokenize.TokenInfo, columns: frozenset[str]) -> str:
    if token.type == tokenize.STRING or (token.type == tokenize.NAME and token.string in columns):
        return TEXT
    if token.type == tokenize.NUMBER:
        return NUMBER
    return tokenize.tok_name[token.type] if token.type in _LAYOUT else token.string


def _without_runs(marks: Sequence[str]) -> list[str]:
    kept: list[str] = []
    for mark in marks:
        if mark == TEXT and kept[-2:] == [TEXT, ","]:
            kept.pop()
        elif mark == TEXT and kept[-1:] == [TEXT]:  # 'a' 'b' is one string
            continue
        else:
            kept.append(mark)
    return kept


def template_measures(codes: Iterable[str | None], columns: Collection[str] = ()) -> Counter[str]:
    """How many of these drafts have each template; those without code have none."""
    return Counter(template(code, columns) for code in codes if code is not None)


def shares(counts: Counter[str], drafts: int) -> dict[str, float | int | None]:
    """`templates`: how many different ones; `template_share`: that of the commonest among all `drafts`, those without
    code too (None without a draft)."""
    commonest = max(counts.values(), default=0)
    return {"templates": len(counts), "template_share": commonest / drafts if drafts else None}


def column_names(task: Task) -> frozenset[str]:
    """The names that stand in the headers of a task's public files."""
    return frozenset().union(*(_header(path, stamp(path)) for path in task.public_dir.glob("*.csv")))


@lru_cache(maxsize=1024)
def _header(path: Path, changed: tuple[int, int]) -> frozenset[str]:
    import pandas as pd

    return frozenset(map(str, pd.read_csv(path, nrows=0).columns))
