"""Whether a program's output is the expected one: bytes in, None or one sentence out. Never a part of the answer.

The flags are those of the default output validator of Kattis and ICPC problem packages, and mean:

- both files are cut at ASCII white space into tokens, which must agree one by one, in number too. White space itself
  does not matter, unless `space_change_sensitive`: then every run of it must be the same, byte by byte, also the last;
- two tokens agree when they are equal, byte by byte; without `case_sensitive` ASCII letters may differ in case;
- with a tolerance, two tokens that both read as numbers agree when the absolute error is at most the absolute tolerance
  or the error relative to the answer is at most the relative one; a number and a word differ. Numbers are decimal ("1",
  "-.5", "2e-3") or inf, infinity, nan in any case; "0x10" and "1_000" are words. NaN agrees with nothing, infinity with
  itself alone, -0.0 with 0. Numbers of more digits than a double holds are subtracted with 28. Without a tolerance
  numbers are words like others: "1.0" is not "1".

Time and memory are linear in the two sizes: tokens are made a megabyte at a time.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from workbench.types import WorkbenchError

MAX_OUTPUT = 64 * 2**20
"""Bytes of output that are looked at; more is refused."""
_CHUNK = 2**20
_EXACT_DIGITS = 15
"""Decimal numbers of as many digits are told apart by a double."""
_TOKEN_END = re.compile(rb"\S(?=\s)")
_PIECE = re.compile(rb"\s+|\S+")
_NUMBER = re.compile(rb"[+-]?(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:e[+-]?[0-9]+)?|inf(?:inity)?|nan)", re.IGNORECASE)
_TOLERANCES = ("float_absolute_tolerance", "float_relative_tolerance", "float_tolerance")


@dataclass(frozen=True, slots=True)
class Comparison:
    """How outputs are compared. Raises WorkbenchError for a tolerance that is not a finite number of 0 or more."""

    case_sensitive: bool = True
    space_change_sensitive: bool = False
    float_absolute_tolerance: float | None = None
    float_relative_tolerance: float | None = None
    float_tolerance: float | None = None
    """Both, where the one by name is not given."""

    def __post_init__(self) -> None:
        for name in _TOLERANCES:
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and 0 <= value < math.inf):
                raise WorkbenchError(f"{name}={value!r} is not accepted: expected a finite number of 0 or more.")

    @property
    def tolerances(self) -> tuple[float, float] | None:
        """Absolute and relative, -1 for one that nothing is within; None where numbers are words."""
        given = (self.float_absolute_tolerance, self.float_relative_tolerance)
        absolute, relative = (self.float_tolerance if value is None else value for value in given)
        if absolute is None and relative is None:
            return None
        return (-1.0 if absolute is None else absolute), (-1.0 if relative is None else relative)


def comparison(flags: str) -> Comparison:
    """From the `validator_flags` of a problem package, where case matters only if they say so.

    Raises WorkbenchError for a flag that is unknown or lacks its number.
    """
    found: dict[str, bool | float] = {"case_sensitive": False}
    words = iter(flags.split())
    for word in words:
        if word in ("case_sensitive", "space_change_sensitive"):
            found[word] = True
        elif word in _TOLERANCES:
            try:
                found[word] = float(next(words, ""))
            except ValueError:
                raise WorkbenchError(f"validator_flags '{flags}': expected a number after {word}.") from None
        else:
            known = ("case_sensitive", "space_change_sensitive", *_TOLERANCES)
            raise WorkbenchError(f"validator_flags '{flags}': '{word}' is unknown, expected {', '.join(known)}.")
    return Comparison(**found)  # type: ignore[arg-type]


def compare(output: bytes, answer: bytes, how: Comparison) -> str | None:
    """None when `output` is accepted, else why not, as one sentence that tells nothing of `answer` but where."""
    if len(output) > MAX_OUTPUT:
        return f"the output has {len(output)} bytes, more than the {MAX_OUTPUT} that are read."
    tolerances = how.tolerances
    if tolerances is None and output == answer:
        return None
    what = "part" if how.space_change_sensitive else "token"  # white space is a part, too
    for number, (wanted, got) in enumerate(itertools.zip_longest(_tokens(answer, how), _tokens(output, how)), 1):
        if wanted == got and (tolerances is None or wanted[-1:] not in b"nN"):
            continue
        if got is None:
            return f"the output ends after {number - 1} {what}s, more are expected."
        if wanted is None:
            return f"the output goes on after {number - 1} {what}s, where it should end."
        if tolerances is None or not _close(got, wanted, *tolerances):
            return f"{what} {number} is not the expected one."
    return None


def _tokens(data: bytes, how: Comparison) -> Iterator[bytes]:
    """The tokens of a file; with `space_change_sensitive` the white space between them, too."""
    chunks = _chunks(data) if how.case_sensitive else map(bytes.lower, _chunks(data))
    return itertools.chain.from_iterable(map(_PIECE.findall if how.space_change_sensitive else bytes.split, chunks))


def _chunks(data: bytes) -> Iterator[bytes]:
    """About a megabyte each, cut where a token ends."""
    start = 0
    while start < len(data):
        cut = _TOKEN_END.search(data, start + _CHUNK)
        end = cut.end() if cut else len(data)
        yield data[start:end]
        start = end


def _close(got: bytes, wanted: bytes, absolute: float, relative: float) -> bool:
    """Whether two tokens agree where numbers have a tolerance."""
    if not _NUMBER.fullmatch(wanted) or not _NUMBER.fullmatch(got):
        return got == wanted
    x, y = float(got), float(wanted)
    if not (math.isfinite(x) and math.isfinite(y)):
        return x == y
    error = abs(x - y)
    if len(got) > _EXACT_DIGITS or len(wanted) > _EXACT_DIGITS:
        with contextlib.suppress(ArithmeticError):  # an exponent beyond all bounds, of a zero
            error = float(abs(Decimal(got.decode()) - Decimal(wanted.decode())))
    return error == 0 or error <= absolute or error <= relative * abs(y)
