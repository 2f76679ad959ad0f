"""Reading a submission: whatever the bytes are, numbers or one sentence."""

from __future__ import annotations

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
        (b"id,y\n1,yes\n2,0.4\n3,no\n", LABEL, "column 'y' holds '0.4' on line 3: a label is wanted, one of no, yes."),
        (b"id,y\n1,yes\n2,\n3,no\n", LABEL, "column 'y' has a missing value on line 3."),
        (b"id,a,b\n1,0.5,0.5\n2,0.5,0.4\n3,1,0\n", CLASSES, "the probabilities on line 3 sum to 0.9, expected 1."),
    ],
)
def test_what_is_wrong_is_one_sentence(data: bytes, form: Form, reason: str) -> None:
    with pytest.raises(BadSubmission) as refused:
        parse(data, form)
    assert str(refused.value) == reason


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
