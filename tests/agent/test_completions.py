"""From a completion to a script, and from its output to its own score."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.agent.completions import parse_code, parse_own_score

SCRIPT = "import pandas as pd\ntrain = pd.read_csv('./input/train.csv')\nprint(len(train))\n"
SAVED = "s.to_csv('submission.csv')\n"
FENCED = f"Here it is.\n```python\n{SCRIPT}```\nDone."


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", None),
        ("   \n\n", None),
        ("I am sorry, I cannot do that.", None),
        ("Привет, мир! 你好", None),
        ("\u202e\u0000\ufeff\U0001f600", None),
        ("```python\n```", None),
        ("```\n\n```", None),
        (SCRIPT, SCRIPT),
        (FENCED, SCRIPT),
        (FENCED.replace("```python", "```py"), SCRIPT),
        (FENCED.replace("```python", "```"), SCRIPT),
        (FENCED.replace("```python", "  ``` Python  "), SCRIPT),
        (f"```python\n{SCRIPT}", SCRIPT),  # cut before the fence was closed
        (f"```bash\npip install x\n```\n```python\n{SCRIPT}```", SCRIPT),
        (f"```python\nx = (\n```\nBetter:\n```python\n{SCRIPT}```", SCRIPT),
        (f"```python\n{SCRIPT}```\n```python\ny = (\n```", SCRIPT),
        ("```python\nx = (\n```", "x = (\n"),
        ("print('naïve — 😀')", "print('naïve — 😀')\n"),
        ("x = 1\r\nprint(x)\r\n", "x = 1\nprint(x)\n"),
        (FENCED.replace("\n", "\r\n"), SCRIPT),
        (FENCED.replace("```", "~~~"), SCRIPT),
        (FENCED.replace("```", "````"), SCRIPT),
        (FENCED.replace("```python", "```python title='run.py'"), SCRIPT),
        (FENCED.replace("```python", "```{.python .numberLines}"), SCRIPT),
        (f"~~~\n{SCRIPT}```\n~~~", SCRIPT + "```\n"),  # one sign does not close the other
        ("1. So:\n   ```python\n   if x:\n       y = 1\n   ```\n", "if x:\n    y = 1\n"),
        (f"<think>\n```python\nx = 1\n```\nNo.</think>\n{FENCED}", SCRIPT),
        (f"Try x = 1 first.\n```python\nx = 1\n```\n</think>\n\n{SCRIPT}", SCRIPT),  # begun in the template
        (f"<think>\n\n</think>\n\n{SCRIPT}", SCRIPT),
        ("<think>\n```python\nx = 1\n```\nbut then", None),  # cut before there was an answer
        ("print('</think>')\n", "print('</think>')\n"),
        ("```python\nprint('</think>')\n```", "print('</think>')\n"),
        ('```python\ns = """\n```\nx\n```\n"""\nprint(s)\n```\nDone.', 's = """\n```\nx\n```\n"""\nprint(s)\n'),
        (
            '```python\n"""Use\n```python\nrun()\n```\n"""\nrun()\n```',
            '"""Use\n```python\nrun()\n```\n"""\nrun()\n',
        ),
        (f"```python\n{SAVED}```\nTo look at it:\n```python\nprint(open('log').read())\n```", SAVED),
        (f"```python\n{SAVED}```\nOr better:\n```python\n{SCRIPT}{SAVED}```", SCRIPT + SAVED),
        (f"```python\n{SAVED}```\nIt writes\n```\nsubmission.csv\n```", SAVED),
        (f"```python\n{SAVED}```\nwith the columns\n```\nid,submission\n```", SAVED),
        (f"```python\n{SAVED}```\nLook:\n```python\npd.read_csv('submission.csv').head()\n```", SAVED),
        ("First I look at the data. Then,\nfor each column, I fill what is missing\nwith its mean.", None),
        ("# Approach\n\nWe fit a forest.", None),
        ("# Approach", None),
        ("if you want more,\nask again.", None),
        ("import the data and fit", None),
        ("from the data we learn\nx", None),
        ("Sorry.", None),
        ("Sorry", None),
        ("# load\nimport pandas as pd\nx = (\n", "# load\nimport pandas as pd\nx = (\n"),
        ("train = pd.read_csv(\n", "train = pd.read_csv(\n"),
        ("for c in columns:\n    x = (\n", "for c in columns:\n    x = (\n"),
        ("def broken(:\n    pass\n", "def broken(:\n    pass\n"),
        ("try:\n    x = (\n", "try:\n    x = (\n"),
        ("raise ValueError(1)\n", "raise ValueError(1)\n"),
    ],
)
def test_the_script_of_a_completion(text: str, code: str | None) -> None:
    assert parse_code(text) == code


@given(st.text(max_size=300))
@settings(max_examples=300, deadline=None)
def test_no_completion_is_too_odd(text: str) -> None:
    for body in (text, f"```python\n{text}\n```", f"```\n{text}"):
        code = parse_code(body)
        assert code is None or code.strip()


def test_deeply_nested_source_is_handed_on_not_raised() -> None:
    code = "x = " + "(" * 5000 + "1" + ")" * 5000
    assert parse_code(f"```python\n{code}\n```") == code + "\n"


@pytest.mark.parametrize(
    ("stdout", "score"),
    [
        ("Validation score: 0.81234\n", 0.81234),
        ("Validation score: 0.5\nfoo\nFinal validation score = -1e-3\n", -0.001),
        ("Validation score: 1e-3\n", 0.001),
        ("Validation score: -2.5E+2\r\n", -250.0),
        ("epoch 1\rValidation score: .5", 0.5),
        ("Validation score: nan\n", None),
        ("Validation score: 0.9\nValidation score: nan\n", None),  # what it ended with
        ("Validation score: 0.9\nValidation score: -inf\n", None),
        ("Validation score: 0.9\nThe Validation score: 0.1 was low\n", 0.9),
        ("Validation score: 0.9 Validation score: 0.8\n", None),
        ("Validation score:\n0.5\n", None),
        ("Validation score: 1e999\n", None),
        ("Validation score: about 0.7\n", None),
        ("My Validation score: 0.7 is good\n", None),
        ("", None),
    ],
)
def test_the_score_that_a_script_prints_of_itself(stdout: str, score: float | None) -> None:
    assert parse_own_score(stdout) == score


def test_a_line_of_digits_takes_no_long_time() -> None:
    """Up to 256 kB of output are kept of a script, in one line or in many."""
    start = time.perf_counter()
    assert parse_own_score("validation score: " + "1" * 2**18 + "x") is None
    assert parse_own_score(("validation score: " + "1" * 150 + "x\n") * 1500) is None
    assert time.perf_counter() - start < 1


def test_many_fences_take_no_long_time() -> None:
    text = '```python\nx = """\n' + "```\n" * 20_000
    code = parse_code(text)
    assert code is not None
    assert code.startswith("x = ")
