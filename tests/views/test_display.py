from __future__ import annotations

import base64
import json

import pandas as pd

from workbench.views import figures
from workbench.views.display import bundle, folded, table_html


def test_bundle_has_a_picture_a_table_and_plotly(metrics: pd.DataFrame) -> None:
    table = figures.learning_table(metrics)
    found = bundle(figures.learning_curve(metrics), table)
    json.dumps(found)
    assert len(found["application/vnd.plotly.v1+json"]["data"]) == 5
    assert found["image/svg+xml"].startswith("<svg")
    encoded = found["text/html"].split("base64,")[1].split('"')[0]
    assert base64.b64decode(encoded).decode() == found["image/svg+xml"]
    assert 'alt="Learning curve"' in found["text/html"]
    assert "reward_mean" in found["text/plain"]
    assert len(json.dumps(found)) < 100_000


def test_tables_are_escaped_rounded_and_show_gaps() -> None:
    table = pd.DataFrame({"name": ["<b>x</b>", None], "value": [0.123456, float("nan")], "count": [3, 4]})
    html = table_html(table)
    assert "<b>" not in html
    assert "0.123" in html
    assert "0.1235" not in html
    assert html.count("–") == 2
    assert "<summary>a &amp; b</summary>" in folded(html, "a & b")


def test_named_index_becomes_a_column() -> None:
    html = table_html(pd.DataFrame({"share": [0.5]}, index=pd.Index(["syntax"], name="failure")))
    assert "failure" in html
    assert "syntax" in html
