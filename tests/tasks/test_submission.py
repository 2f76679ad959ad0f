"""Reading a submission: whatever the bytes are, numbers or one sentence."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.tasks.metrics import METRICS
from workbench.tasks.submission import BadSubmission, Form, canonical_id, parse

NUMBER = Form("id", ("y",), (), METRICS["rmse"], {"1": 0, "2": 1, "3": 2}, 10_000)
POSITIVE = Form("id", ("y",), (), METRICS["rmsle"], {"1": 0, "2": 1, "3": 2}, 10_000)
PROBABILITY = Form("id", ("y",), (), METRICS["auc"], {"1": 0, "2": 1, "3": 2}, 10_000)
LABEL = Form("id", ("y",), ("no", "yes"), METRICS["f1"], {"1": 0, "2": 1, "3": 2}, 10_000)
CODES = Form("id", ("y",), ("0", "1", "2"), METRICS["accuracy"], {"1": 0, "2": 1, "3": 2}, 10_000)
CLASSES = Form("id", ("a", "b"), (), METRICS["logloss"], {"1": 0, "2": 1, "3": 2}, 10_000)
LARGE = Form("id", ("y",), (), METRICS["rmse"], {"1": 0, "2": 1, "3": 2}, 10_000_000)
ON = "column 'y' holds "
GOOD = b"id,y\n1,0.5\n2,1\n3,0\n"


@pytest.mark.parametrize(
    "data",
    [
        GOOD,
        b"\xef\xbb\xbf" + GOOD,
        GOOD.replace(b"\n", b"\r\n"),
        GOOD.rstrip(b"\n"),
        b"id,y\n\n1,0.5\n2,1\n\n3,0\n\n",
        b"y,id\n1,2\n0.5,1\n0,3\n",
        b"id,y\n3,0\n1,0.5\n2,1\n",
        b"id,extra,y\n1,x,0.5\n2,x,1\n3,x,0\n",
        b'"id","y"\n"1","0.5"\n"2","1"\n"3","0"\n',
        b"id,y\n1.0,0.5\n02,1e0\n 3 , 0.0\n",
        b" id , y \n1,5e-1\n2,+1\n3,-0\n",
    ],
)
def test_forms_of_the_same_numbers(data: bytes) -> None:
    np.testing.assert_array_equal(parse(data, NUMBER), [[0.5], [1.0], [0.0]])


@pytest.mark.parametrize(
    ("data", "form", "reason"),
    [
        (b"", NUMBER, "the file is empty."),
        (b"  \n \n", NUMBER, "the file is empty."),
        (b"\x00\x01\x02", NUMBER, "the columns cannot be read: the file holds NUL bytes, UTF-8 text is wanted."),
        (GOOD.decode().encode("utf-16"), NUMBER, "the columns cannot be read: the file is UTF-16, UTF-8 is wanted."),
        (b"id,y\n1,\xff\n", NUMBER, "the columns cannot be read: byte 7 is not UTF-8 text."),
        (
            b"x" * 10_001,
            NUMBER,
            "the file is larger than 10000 bytes: the columns 'id', 'y' are wanted and nothing else.",
        ),
        (b"id,z\n1,2\n", NUMBER, "column 'y' is missing: the columns are 'id', 'z', 'id', 'y' are wanted."),
        (b"id,y,y\n1,2,3\n", NUMBER, "column 'y' appears 2 times."),
        (b"id,y\n1,2,3\n", NUMBER, "line 2 has 3 columns, the first line has 2."),
        (b"id,y\n1,2\n2,3\n", NUMBER, "1 of the 3 ids of test.csv are absent, for example '3'."),
        (b"id,y\n1,2\n1,2\n3,1\n", NUMBER, "id '1' appears twice, again on line 3."),
        (b"id,y\n1,2\n9,2\n3,1\n", NUMBER, "id column 'id' holds '9' on line 3, which is no id of test.csv."),
        (
            b"id,y\n1,2\n,2\n3,1\n",
            NUMBER,
            "id column 'id' holds a missing value on line 3, which is no id of test.csv.",
        ),
        (b"id,y\n1,2\n2,2\n3,1\n4,4\n", NUMBER, "there are more than the 3 rows of test.csv."),
        (b"id,y\n1,\n2,2\n3,1\n", NUMBER, "column 'y' has a missing value on line 2."),
        (b"id,y\n1,nan\n2,2\n3,1\n", NUMBER, "column 'y' has a missing value on line 2."),
        (b"id,y\n1,1\n2,inf\n3,1\n", NUMBER, "column 'y' holds inf on line 3, which is not finite."),
        (b"id,y\n1,1\n2,cat\n3,1\n", NUMBER, "column 'y' holds 'cat' on line 3: a number is wanted."),
        (b"id,y\n1,1_0\n2,1\n3,1\n", NUMBER, "column 'y' holds '1_0' on line 2: a number is wanted."),
        (b"id,y\n1,1\n2,-1\n3,1\n", POSITIVE, "column 'y' holds -1 on line 3: it must not be negative."),
        (
            b"id,y\n1,1\n2,1.5\n3,1\n",
            PROBABILITY,
            "column 'y' holds 1.5 on line 3: a probability between 0 and 1 is wanted.",
        ),
        (b"id,y\n1,1\n2,yes\n3,1\n", PROBABILITY, "column 'y' holds 'yes' on line 3: a probability is wanted."),
        (b"id,y\n1,0.2\n2,-0.1\n3,1\n", PROBABILITY, f"{ON}-0.1 on line 3: a probability between 0 and 1 is wanted."),
        (b"id,y\n1,0.2\n2,no\n3,yes\n", PROBABILITY, f"{ON}'no' on line 3: a probability is wanted."),
        (b"id,y\n1,1\n2,1e101\n3,1\n", NUMBER, f"{ON}1e101 on line 3: the number is too large."),
        (b"id,y\n1,1\n2,1e400\n3,1\n", NUMBER, f"{ON}1e400 on line 3, which is not finite."),
        (b'id,y\n1,1\n2,"-Infinity\n"\n3,1\n', NUMBER, f"{ON}-Infinity on line 4, which is not finite."),
        (b'id,y\n1,1\n2,"1,5"\n3,1\n', NUMBER, f"{ON}'1,5' on line 3: a number is wanted."),
        (b"id,y\n1,1\n2,0x10\n3,1\n", NUMBER, f"{ON}'0x10' on line 3: a number is wanted."),
        (b"id,y\n1,1\n2,50%\n3,1\n", NUMBER, f"{ON}'50%' on line 3: a number is wanted."),
        ("id,y\n1,1\n2,\uff11\n3,1\n".encode(), NUMBER, f"{ON}'\uff11' on line 3: a number is wanted."),
        (b"id,y\n1,True\n2,1\n3,1\n", NUMBER, f"{ON}'True' on line 2: a number is wanted."),
        (b"id,y\n\n1,1\n\n2,\n3,1\n", NUMBER, "column 'y' has a missing value on line 5."),
        (b"id,y\n1,1\n2,<NA>\n3,1\n", NUMBER, "column 'y' has a missing value on line 3."),
        (b"id;y\n1;1\n2;1\n3;1\n", NUMBER, "column 'id' is missing: the columns are 'id;y', 'id', 'y' are wanted."),
        (b"1,1\n2,1\n3,1\n", NUMBER, "column 'id' is missing: the columns are '1', '1', 'id', 'y' are wanted."),
        (b",id,id,y\n0,1,1,2\n", NUMBER, "column 'id' appears 2 times."),
        (b"id,y\n", NUMBER, "3 of the 3 ids of test.csv are absent, for example '1'."),
        (b"id,y\n1,1\n2\n3,1\n", NUMBER, "line 3 has 1 columns, the first line has 2."),
        (b"id,y\n1,1\n1.0,1\n3,1\n", NUMBER, "id '1.0' appears twice, again on line 3."),
        (b"id,y\n1,1\n2.5,1\n3,1\n", NUMBER, "id column 'id' holds '2.5' on line 3, which is no id of test.csv."),
        (
            b'id,y\n1,1\n2,"1\n3,1\n',
            NUMBER,
            "line 4 is not CSV, its columns cannot be told apart: unexpected end of data.",
        ),
        (b"\x89PNG\r\n\x1a\n", NUMBER, "the columns cannot be read: byte 0 is not UTF-8 text."),
        (
            GOOD.decode().encode("utf-16-be"),
            NUMBER,
            "the columns cannot be read: the file holds NUL bytes, UTF-8 text is wanted.",
        ),
        (b",".join([b"c"] * 1001), NUMBER, "the file has 1001 columns: 'id', 'y' are wanted."),
        (
            b"id,y\n" + b"1,1\n" * 10**5,
            LARGE,
            "there are more than the 3 rows of test.csv.",
        ),
        (
            b"id" * 40_000,
            LARGE,
            "the first line is longer than 64000 characters: the columns 'id', 'y' are wanted.",
        ),
        ("id,y\n1,é\n".encode("latin-1"), NUMBER, "the columns cannot be read: byte 7 is not UTF-8 text."),
        (b"ID,y\n1,1\n2,1\n3,1\n", NUMBER, "column 'id' is missing: the columns are 'ID', 'y', 'id', 'y' are wanted."),
        (b"id,y\n1,=1+1\n2,1\n3,1\n", NUMBER, f"{ON}'=1+1' on line 2: a number is wanted."),
        (b"id,y\n1,1\n2,+-1\n3,1\n", NUMBER, f"{ON}'+-1' on line 3: a number is wanted."),
        (b"id,y\n1,None\n2,1\n3,1\n", NUMBER, "column 'y' has a missing value on line 2."),
        (b"id,y\n1,1\n2,-inf\n3,1\n", NUMBER, f"{ON}-inf on line 3, which is not finite."),
        (b"id,y\n1,true\n2,1\n3,1\n", PROBABILITY, f"{ON}'true' on line 2: a probability is wanted."),
        (b"id,y\n1,True\n2,1\n3,1\n", CODES, f"{ON}'True' on line 2: a label is wanted, one of 0, 1, 2."),
        (
            "id,y\n\uff11,1\n2,1\n3,1\n".encode(),
            NUMBER,
            "id column 'id' holds '\uff11' on line 2, which is no id of test.csv.",
        ),
        (b"id,y\n1,1\n2,3\n3,0\n", CODES, f"{ON}'3' on line 3: a label is wanted, one of 0, 1, 2."),
        (b"id,y\n1,1\n2,0.5\n3,0\n", CODES, f"{ON}'0.5' on line 3: a label is wanted, one of 0, 1, 2."),
        (b"id,y\n1,Yes\n2,no\n3,no\n", LABEL, f"{ON}'Yes' on line 2: a label is wanted, one of no, yes."),
        (
            b"id,a,b\n1,0.5,0.5\n2,0.5,0.5\n3,1.2,-0.2\n",
            CLASSES,
            "column 'a' holds 1.2 on line 4: a probability between 0 and 1 is wanted.",
        ),
        (b"id,a,b\n3,0,0\n2,1,0\n1,1,0\n", CLASSES, "the probabilities on line 2 sum to 0, expected 1."),
        (
            b"id,a\n1,1\n2,1\n3,1\n",
            CLASSES,
            "column 'b' is missing: the columns are 'id', 'a', 'id', 'a', 'b' are wanted.",
        ),
        (b"id,y\n1,yes\n2,0.4\n3,no\n", LABEL, "column 'y' holds '0.4' on line 3: a label is wanted, one of no, yes."),
        (b"id,y\n1,yes\n2,\n3,no\n", LABEL, "column 'y' has a missing value on line 3."),
        (b"id,a,b\n1,0.5,0.5\n2,0.5,0.4\n3,1,0\n", CLASSES, "the probabilities on line 3 sum to 0.9, expected 1."),
    ],
)
def test_what_is_wrong_is_one_sentence(data: bytes, form: Form, reason: str) -> None:
    with pytest.raises(BadSubmission) as refused:
        parse(data, form)
    assert str(refused.value) == reason


class Untouched(bytes):
    """The bytes of a submission of which nothing but the length may be looked at."""

    def strip(self, *_: object) -> bytes:  # type: ignore[override]
        raise AssertionError("it was read")

    __getitem__ = decode = __contains__ = strip  # type: ignore[assignment]


def test_what_is_too_large_is_not_even_looked_at() -> None:
    with pytest.raises(BadSubmission, match="larger than 10000 bytes"):
        parse(Untouched(10_001), NUMBER)
    with pytest.raises(AssertionError, match="it was read"):
        parse(Untouched(10_000), NUMBER)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"id,y\n1," + b"1" * 100_000_000 + b"\n", "field larger than field limit"),
        (b'id,y\n1,1\n2,"' + b"\n" * 1_000_000, "field larger than field limit"),
        (b"id,y" + b",c" * 1_000_000 + b"\n", "the first line is longer than 64000 characters"),
        (b"id,y\n1" + b",1" * 1_000_000 + b"\n", "line 2 has 1000001 columns, the first line has 2"),
        (b"id,y\n" * 1_000_000, "id column 'id' holds 'id' on line 2|more than the 3 rows"),
    ],
    ids=["one cell", "an open quote", "header", "columns", "lines"],
)
def test_large_files_below_the_cap_are_refused_quickly(data: bytes, reason: str) -> None:
    form = replace(NUMBER, max_bytes=2**30)
    began = time.process_time()
    with pytest.raises(BadSubmission, match=reason):
        parse(data, form)
    assert time.process_time() - began < 5


def test_labels_become_codes_in_the_order_of_the_classes() -> None:
    assert parse(b"id,y\n1,yes\n3,no\n2,yes\n", LABEL).ravel().tolist() == [1.0, 1.0, 0.0]
    assert parse(b"id,y\n1,2\n3,0.0\n2,1\n", CODES).ravel().tolist() == [2.0, 1.0, 0.0]


@given(st.binary(max_size=400))
@settings(max_examples=300, deadline=None)
def test_no_bytes_are_too_odd(data: bytes) -> None:
    for form in (NUMBER, LABEL, CLASSES):
        try:
            values = parse(data, form)
        except BadSubmission as reason:
            text = str(reason)
            assert "\n" not in text.strip() and text.endswith(".")  # noqa: PT018
        else:
            assert values.shape == (3, len(form.target_columns))


@pytest.mark.parametrize(("text", "same"), [("7", "7.0"), ("007", "7"), (" 7 ", "7"), ("-7", "-7.00"), ("a 1", " a 1")])
def test_two_forms_of_one_id_agree(text: str, same: str) -> None:
    assert canonical_id(text) == canonical_id(same)


def test_ids_that_are_no_integers_keep_their_letters() -> None:
    assert len({canonical_id(text) for text in ("7", "7.5", "S7", "s7", "7e0", "1" * 19)}) == 6


@given(st.permutations(["1", "2", "3"]), st.permutations(["id", "y", "z"]), st.lists(st.floats(-1e9, 1e9), min_size=3))
def test_neither_row_nor_column_order_matters(ids: list[str], names: list[str], numbers: list[float]) -> None:
    said = dict(zip(ids, numbers, strict=False))
    cells = [{"id": name, "y": repr(said[name]), "z": "x"} for name in ids]
    text = "\n".join([",".join(names), *(",".join(cell[name] for name in names) for cell in cells)])
    assert parse(text.encode(), NUMBER).ravel().tolist() == [said["1"], said["2"], said["3"]]


def test_probabilities_rounded_to_three_decimals_pass() -> None:
    form = Form("id", ("a", "b", "c"), (), METRICS["logloss"], {"1": 0}, 10_000)
    assert parse(b"id,a,b,c\n1,0.333,0.333,0.333\n", form).tolist() == [[0.333] * 3]
    with pytest.raises(BadSubmission, match=r"sum to 0\.99, expected 1"):
        parse(b"id,a,b,c\n1,0.33,0.33,0.33\n", form)


def test_ids_that_are_words_are_compared_as_they_are() -> None:
    form = Form("id", ("y",), (), METRICS["rmse"], {"S-1": 0, "1e5": 1, "é": 2}, 10_000)
    assert parse("id,y\n1e5,1\né,2\n S-1 ,3\n".encode(), form).ravel().tolist() == [3.0, 1.0, 2.0]
    with pytest.raises(BadSubmission, match="holds '100000' on line 2, which is no id"):
        parse(b"id,y\n100000,1\n", form)
