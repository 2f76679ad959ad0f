from __future__ import annotations

import pandas as pd
import pytest

from workbench.views.traces import LIMIT, readable, rollouts_html, sample, spread, turn_line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("</script><img src=x onerror=alert(1)>", "&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;"),
        ("a\x00b", "a\\u0000b"),
        ("a\ud800b", "a\\ud800b"),
        ("a\u202eb", "a\\u202eb"),
        ("tab\tand\nline", "tab\tand\nline"),
        ("\ue000 private", "\ue000 private"),
        ("\"quotes' & more", "&quot;quotes&#x27; &amp; more"),
        (None, ""),
        (float("nan"), ""),
    ],
)
def test_readable(text: object, shown: str) -> None:
    assert readable(text) == shown
    readable(text).encode()


def test_huge_text_is_cut_in_the_middle() -> None:
    shown = readable("a" * 2_500_000 + "b" * 2_500_000)
    assert len(shown) < LIMIT + 100
    assert shown.startswith("aaa")
    assert shown.endswith("bbb")
    assert "characters left out" in shown


def test_spread_covers_the_range_without_doubles(turns: pd.DataFrame) -> None:
    doubled = pd.concat([turns, turns])
    chosen = spread(doubled, 6)
    assert len(chosen) == 6
    assert chosen["reward"].is_monotonic_increasing
    assert chosen["reward"].iloc[0] == turns["reward"].min()
    assert chosen["reward"].iloc[-1] == turns["reward"].max()
    assert not chosen.duplicated(["task", "text"]).any()
    assert len(spread(turns.head(2), 6)) == 2


def test_samples_of_a_long_run_are_distinct_and_few_steps_are_read(turns: pd.DataFrame) -> None:
    asked: list[int] = []

    class Long:
        def turns(self, step: int) -> pd.DataFrame:
            asked.append(step)
            return of_step[of_step["step"] == step]

    many = pd.concat([turns.assign(step=turns["step"] + 20 * n) for n in range(20)])
    of_step = many.assign(position=0, member=many.groupby("step").cumcount())
    chosen = sample(Long(), of_step[["step", "position", "member", "reward"]], 6)
    assert len(chosen) == 6
    assert chosen["reward"].is_monotonic_increasing
    assert chosen["reward"].iloc[0] == turns["reward"].min()
    assert chosen["reward"].iloc[-1] == turns["reward"].max()
    assert not chosen.duplicated(["task", "text"]).any()
    assert len(asked) == len(set(asked)) <= 24
    assert sample(Long(), of_step.iloc[:0], 6).empty


def test_rollouts_are_escaped(turns: pd.DataFrame) -> None:
    html = rollouts_html(spread(turns, 8))
    assert html.count("<details") == 8
    assert "<script" not in html
    assert "<img" not in html
    assert "<b>" not in html
    assert "&lt;img src=x onerror" in html
    assert "No rollouts yet" in rollouts_html(turns.iloc[:0])


def test_line_of_an_unscorable_turn(turns: pd.DataFrame) -> None:
    lost = turns[turns["verdict"] == "infrastructure"].iloc[0].to_dict()
    assert "unscorable" in turn_line(lost)
