"""Scripts that differ in names of columns, texts and numbers have one template; those that do other things have not."""

from __future__ import annotations

import pytest

from workbench.learning.templates import column_names, shares, template, template_measures
from workbench.tasks.catalog import load_tasks

SCRIPT = """import pandas as pd

train = pd.read_csv('train.csv')  # the table
X = train.drop(columns=['price', 'stone'])
model = Forest(100, seed=0).fit(X, train.price)
print(f'Validation score: {model.score(X):.4f}')
"""
SAME = """import pandas as pd
train = pd.read_csv("other.csv")
X = train.drop(
    columns=["a", "b", "c"],
)

model = Forest(20, seed=7).fit(X, train.weight)
print(f'score {x}')
"""


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (SCRIPT, SAME.replace('"c",\n)', '"c"\n)').replace('c"],\n)', 'c"])'), True),
        ("fit(a, 1)\n", "fit(a, 2.5e3)  # more\n", True),
        ("fit('x')\n", "fit('x' 'y')\n", True),
        ("fit(['x', 'y'])\n", "fit(['x'])\n", True),
        ("fit('x', 1)\n", "fit('x', 'y')\n", False),
        ("fit(a)\n", "fit(b)\n", False),
        ("a = 1\n", "a = -1\n", False),
        ("Forest(1)\n", "Ridge(1)\n", False),
        ("if a:\n    b()\n", "if a: b()\n", False),
        ("if a:\n    b()\n", "if a:\n  b()\n", True),
        ("fit((\n", "fit((", True),
    ],
)
def test_which_scripts_have_one_template(one: str, other: str, equal: bool) -> None:
    columns = ("price", "weight")
    assert (template(one, columns) == template(other, columns)) is equal


def test_a_column_written_as_an_attribute_is_a_name_only_where_it_is_known() -> None:
    one, other = "f(train.price)\n", "f(train.weight)\n"
    assert template(one) != template(other)
    assert template(one, ["price", "weight"]) == template(other, ["weight", "price"])


def test_the_share_of_the_commonest_is_of_all_drafts() -> None:
    counts = template_measures(["f(1)\n", "f(2)\n", "g(1)\n", None, "f('x')\n"])
    assert shares(counts, 5) == {"templates": 3, "template_share": 2 / 5}
    assert shares(template_measures([None]), 1) == {"templates": 0, "template_share": 0.0}
    assert shares(template_measures([]), 0) == {"templates": 0, "template_share": None}


def test_the_columns_are_those_of_all_public_files() -> None:
    (task,) = load_tasks("storm-phase")
    assert {"fix_id", "phase", "pressure", "hurricane", "depression"} <= column_names(task)
