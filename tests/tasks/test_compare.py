"""Outputs of programs against the expected ones, as Kattis and ICPC packages compare them."""

from __future__ import annotations

import math
import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.tasks.compare import MAX_OUTPUT, Comparison, compare, comparison
from workbench.types import WorkbenchError

EXACT, ANY_CASE, SPACED = Comparison(), Comparison(case_sensitive=False), Comparison(space_change_sensitive=True)
NEAR = Comparison(float_tolerance=1e-6)
ABSOLUTE, RELATIVE = Comparison(float_absolute_tolerance=0.5), Comparison(float_relative_tolerance=0.01)


@pytest.mark.parametrize(
    ("output", "answer", "how"),
    [
        (b"1 2\n3", b"1\t2 3\r\n\n", EXACT),
        (b"", b" \n", EXACT),
        (b"\n" * 10**6 + b"yes" + b"\n" * 10**6, b"yes", EXACT),
        (b"nan", b"nan", EXACT),
        (b"YES no", b"yes NO", ANY_CASE),
        (b" a  b\n", b" a  b\n", SPACED),
        (b"1.0000005", b"1", NEAR),
        (b"1e3", b"1000.0", NEAR),
        (b"-0.0", b"0", NEAR),
        (b"+.5", b"0.5", NEAR),
        (b"-INF Infinity", b"-inf inf", NEAR),
        (b"1e400", b"inf", NEAR),
        (b"word 2", b"word 2.0", NEAR),
        (b"noon", b"noon", NEAR),
        (b"1000000.9", b"1000000", NEAR),
        (b"0.0000009", b"0", NEAR),
        (b"10.5", b"10", ABSOLUTE),
        (b"99 -101", b"100 -100", RELATIVE),
        (b"1", b"1.0", Comparison(float_tolerance=0)),
        (b"\xff\r\n", b"\xff\n", EXACT),
        (b"\0 \xef\xbb\xbf\xff", b"\0 \xef\xbb\xbf\xff", SPACED),
    ],
)
def test_accepted(output: bytes, answer: bytes, how: Comparison) -> None:
    assert compare(output, answer, how) is None


@pytest.mark.parametrize(
    ("output", "answer", "how", "reason"),
    [
        (b"", b"1", EXACT, "the output ends after 0 tokens, more are expected."),
        (b"1 2", b"1 2 3", EXACT, "the output ends after 2 tokens, more are expected."),
        (b"1 2 junk", b"1 2", EXACT, "the output goes on after 2 tokens, where it should end."),
        (b"1\0", b"1", EXACT, "token 1 is not the expected one."),
        (b"12", b"1 2", EXACT, "token 1 is not the expected one."),
        (b"Yes", b"yes", EXACT, "token 1 is not the expected one."),
        (b"\xc3\x84", b"\xc3\xa4", ANY_CASE, "token 1 is not the expected one."),
        (b"1.0", b"1", EXACT, "token 1 is not the expected one."),
        (b"-0.0", b"0", EXACT, "token 1 is not the expected one."),
        (b"\xef\xbb\xbf1", b"1", EXACT, "token 1 is not the expected one."),
        (b"\xff", b"\xef\xbf\xbd", EXACT, "token 1 is not the expected one."),
        (b"\xff", b"\xfe", EXACT, "token 1 is not the expected one."),
        (b"\xc4", b"\xe4", ANY_CASE, "token 1 is not the expected one."),
        (b"a\0", b"a ", EXACT, "token 1 is not the expected one."),
        (b"1\xc2\xa02", b"1 2", EXACT, "token 1 is not the expected one."),
        (b"a b", b"a  b", SPACED, "part 2 is not the expected one."),
        (b"a\r\n", b"a\n", SPACED, "part 2 is not the expected one."),
        (b"a", b"a\n", SPACED, "the output ends after 1 parts, more are expected."),
        (b"a\n\n", b"a\n", SPACED, "part 2 is not the expected one."),
        (b" a", b"a", SPACED, "part 1 is not the expected one."),
        (b"1.000002", b"1", NEAR, "token 1 is not the expected one."),
        (b"nan", b"1", NEAR, "token 1 is not the expected one."),
        (b"nan", b"nan", NEAR, "token 1 is not the expected one."),
        (b"-NaN", b"-NaN", NEAR, "token 1 is not the expected one."),
        (b"inf", b"-inf", NEAR, "token 1 is not the expected one."),
        (b"inf", b"1e308", NEAR, "token 1 is not the expected one."),
        (b"5", b"inf", NEAR, "token 1 is not the expected one."),
        (b"1,0", b"1.0", NEAR, "token 1 is not the expected one."),
        (b"0x10", b"16", NEAR, "token 1 is not the expected one."),
        (b"1_000", b"1000", NEAR, "token 1 is not the expected one."),
        (b"1.0x", b"1.0", NEAR, "token 1 is not the expected one."),
        ("\uff11".encode(), b"1", NEAR, "token 1 is not the expected one."),
        (b"1 " * 100, b"1", NEAR, "the output goes on after 1 tokens, where it should end."),
        (b"10.50001", b"10", ABSOLUTE, "token 1 is not the expected one."),
        (b"101.1", b"100", RELATIVE, "token 1 is not the expected one."),
        (b"1e-9", b"0", RELATIVE, "token 1 is not the expected one."),
        (b"1.000000001", b"1", Comparison(float_tolerance=9e-10), "token 1 is not the expected one."),
        (b"0 1 2 3 4 5 6 7 8 9", b"7", EXACT, "token 1 is not the expected one."),
    ],
)
def test_refused(output: bytes, answer: bytes, how: Comparison, reason: str) -> None:
    assert compare(output, answer, how) == reason


def test_tokens_may_lie_across_chunks() -> None:
    """Of whatever length, and white space of whatever length between them."""
    data = b"  ".join(b"%d" % number * (number % 7 + 1) for number in range(400_000))
    for how in (EXACT, ANY_CASE, SPACED, NEAR):
        assert compare(data + b"\n", data + b"\n", how) is None
        assert compare(data + b"1", data, how) == f"{'part 799999' if how is SPACED else 'token 400000'} {NOT}"
    assert compare(data.replace(b"  ", b" " * 9), data, EXACT) is None
    assert compare(data.replace(b"399999", b"399998"), data, EXACT) == f"token 400000 {NOT}"
    long = b"x" * 3_000_000
    assert compare(long + b" y", long + b"\n" * 3_000_000 + b"y", EXACT) is None
    assert compare(long[1:] + b" y", long + b" y", EXACT) == f"token 1 {NOT}"


NOT = "is not the expected one."
LARGE = {
    "tokens": (b"10 " * 3_000_000, EXACT),
    "words for numbers": (b"10x " * 500_000, NEAR),
    "numbers": (b"0.123456 " * 300_000, NEAR),
    "one token": (b"1" * (8 * 2**20), NEAR),
    "one word": (b"1" * (8 * 2**20) + b"x", NEAR),
    "blank lines": (b"\n" * (8 * 2**20), EXACT),
}


@pytest.mark.parametrize("kind", LARGE)
def test_large_outputs_take_linear_time(kind: str) -> None:
    data, how = LARGE[kind]
    changed = data.replace(b"6", b"5") if kind == "numbers" else data[:-4] + b"  1x"
    began = time.process_time()
    assert compare(changed, data, how) is not None
    assert time.process_time() - began < 10


def test_large_outputs_take_little_memory() -> None:
    data = b"1234567890 " * 500_000
    tracemalloc.start()
    assert compare(data + b"1", data, EXACT) is not None
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 * 2**20, "of a few megabytes at a time, not of all"


def test_output_beyond_the_cap_is_not_read() -> None:
    began = time.process_time()
    assert "more than the 67108864 that are read" in (compare(b" " * (MAX_OUTPUT + 1), b"", EXACT) or "")
    assert time.process_time() - began < 1


TOKEN = st.text("abX019.-+e", min_size=1, max_size=4).map(str.encode)
SPACE = st.text(" \t\n\r\v\f", min_size=1, max_size=3).map(str.encode)


@given(st.lists(TOKEN, max_size=8), st.lists(SPACE, min_size=9, max_size=9), st.lists(SPACE, min_size=9, max_size=9))
def test_white_space_matters_only_where_it_is_asked(tokens: list[bytes], one: list[bytes], other: list[bytes]) -> None:
    first = b"".join(token + space for token, space in zip(tokens, one, strict=False))
    second = b"".join(token + space for token, space in zip(tokens, other, strict=False))
    assert compare(first, second, EXACT) is None
    assert (compare(first, second, SPACED) is None) == (first == second)


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_without_options_it_is_equality_of_the_tokens(output: bytes, answer: bytes) -> None:
    assert (compare(output, answer, EXACT) is None) == (output.split() == answer.split())


@given(st.floats(), st.floats(), st.floats(0, 10), st.floats(0, 10))
@settings(max_examples=300)
def test_tolerances_are_what_they_say(x: float, y: float, absolute: float, relative: float) -> None:
    how = Comparison(float_absolute_tolerance=absolute, float_relative_tolerance=relative)
    close = x == y or (math.isfinite(x) and math.isfinite(y) and abs(x - y) <= max(absolute, relative * abs(y)))
    assert (compare(repr(x).encode(), repr(y).encode(), how) is None) == close


@given(st.binary(max_size=80))
def test_a_reason_tells_nothing_of_the_answer(output: bytes) -> None:
    for how in (EXACT, ANY_CASE, SPACED, NEAR):
        reason = compare(output, b"Xq-secret 123456789", how)
        assert reason is not None
        assert not {"Xq", "secret", "123456789"} & set(reason.replace("-", " ").split())
        assert reason.endswith(".")
        assert len(reason.splitlines()) == 1


def test_flags_of_a_package() -> None:
    assert comparison("") == Comparison(case_sensitive=False)
    assert comparison("case_sensitive space_change_sensitive") == Comparison(True, True)
    assert comparison("float_tolerance 1e-4").tolerances == (1e-4, 1e-4)
    assert comparison("float_absolute_tolerance 1e-4").tolerances == (1e-4, -1)
    assert Comparison(float_relative_tolerance=0.1, float_tolerance=0.2).tolerances == (0.2, 0.1)


@pytest.mark.parametrize("flags", ["float_tolerance", "float_tolerance x", "float_tolerance -1", "tolerance 1", "1e-6"])
def test_flags_that_mean_nothing_are_told(flags: str) -> None:
    with pytest.raises(WorkbenchError, match="expected"):
        comparison(flags)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_a_tolerance_is_a_finite_number(value: float) -> None:
    with pytest.raises(WorkbenchError, match="float_relative_tolerance"):
        Comparison(float_relative_tolerance=value)


@pytest.mark.parametrize(
    ("got", "wanted", "tolerance", "agree"),
    [
        ("100000000000000000", "100000000000000001", {"float_absolute_tolerance": 1e-9}, False),
        ("100000000000000000", "100000000000000001", {"float_absolute_tolerance": 1}, True),
        ("100000000000000000", "100000000000000001", {"float_relative_tolerance": 1e-9}, True),
        ("1.0000000000000000000", "1", {"float_absolute_tolerance": 0}, True),
        ("0e99999999999999999999", "0", {"float_absolute_tolerance": 0}, True),
        ("0." + "0" * 400 + "1", "0", {"float_absolute_tolerance": 1e-9}, True),
    ],
)
def test_numbers_of_more_digits_than_a_double_are_told_apart(
    got: str, wanted: str, tolerance: dict[str, float], agree: bool
) -> None:
    assert (compare(got.encode(), wanted.encode(), Comparison(**tolerance)) is None) == agree
