"""Rollouts to read: what the policy wrote, what the sandbox said, what it earned. All of it escaped.

Model output is hostile text: it may hold markup, control characters, half surrogate pairs and marks that reverse the
reading direction. `readable` makes all of these visible before anything is put on a page.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from typing import Any

import numpy as np
import pandas as pd

from workbench.run import Run
from workbench.views.figures import VALID, thin

LIMIT = 6000
"""Most characters of one text on a page; the middle of a longer one is left out."""

# C0 and C1 controls but tab and newline, marks that change the reading direction, lone surrogates
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff\ufffe\uffff]"
)

_PRE = "margin:2px 0;padding:6px;white-space:pre-wrap;overflow-wrap:anywhere;max-height:26em;overflow:auto;"
_PRE += "border:1px solid rgba(127,127,127,.35);font-family:monospace;font-size:12px;background:rgba(127,127,127,.08)"


def readable(text: object, limit: int = LIMIT) -> str:
    """Text of unknown origin as harmless HTML: cut, invisible characters written as `\\uXXXX`, markup escaped."""
    plain = "" if _missing(text) else str(text)
    if len(plain) > limit:
        half = limit // 2
        plain = f"{plain[:half]}\n… {len(plain) - 2 * half} characters left out …\n{plain[-half:]}"
    return escape(_INVISIBLE.sub(lambda found: f"\\u{ord(found[0]):04x}", plain), quote=True)


def spread(turns: pd.DataFrame, count: int = 6) -> pd.DataFrame:
    """`count` scorable turns across the range of rewards, lowest first, with distinct texts as far as there are."""
    scored = turns[turns["reward"].notna()].drop_duplicates(["task", "text"]).sort_values("reward", kind="stable")
    if len(scored) <= count:
        return scored
    return scored.iloc[np.unique(np.linspace(0, len(scored) - 1, count).round().astype(int))]


def sample(run: Run, turns: pd.DataFrame, count: int = 6) -> pd.DataFrame:
    """`spread` for a run of any length: `turns` needs step, position, member and reward only. The texts of a few times
    `count` turns are read, so that enough distinct ones are among them."""
    keys = ["step", "position", "member"]
    scored = turns[turns["reward"].notna()].sort_values("reward", kind="stable")
    near = thin(scored, 4 * count)[keys]
    read = [run.turns(int(step)).merge(of_step) for step, of_step in near.groupby("step")]
    return spread(pd.concat(read), count) if read else near


def rollouts_html(turns: pd.DataFrame, *, opened: bool = False) -> str:
    """Each turn behind a summary line that opens by click or key."""
    if turns.empty:
        return "<p>No rollouts yet.</p>"
    return "".join(turn_html(turn, opened=opened) for turn in turns.to_dict("records"))


def turn_line(turn: Mapping[str, Any]) -> str:
    """One plain line about a turn: `step 3 · draft wine · reward 0.05 · syntax_error`."""
    reward = "unscorable" if _missing(turn.get("reward")) else f"reward {turn['reward']:.2f}"
    outcome = VALID if _missing(turn.get("failure")) else str(turn["failure"])
    return f"step {turn['step']} · {turn['kind']} {turn['task']} · {reward} · {outcome}"


def turn_html(turn: Mapping[str, Any], *, opened: bool = False) -> str:
    """One turn: completion, what came of it, its streams and the parts of its reward."""
    parts = [
        ("Completion", turn.get("text")),
        ("Why", turn.get("reason")),
        ("Standard output (end)", _tail(turn.get("stdout"))),
        ("Standard error (end)", _tail(turn.get("stderr"))),
    ]
    body = "".join(
        f'<div>{name}</div><pre style="{_PRE}">{readable(text)}</pre>'
        for name, text in parts
        if not _missing(text) and str(text).strip()
    )
    facts = [("verdict", turn.get("verdict")), ("stopped by", turn.get("stop_reason")), ("stage", turn.get("stage"))]
    facts += [("own score", _number(turn.get("own_score"))), ("hidden score", _number(turn.get("score")))]
    facts += [(f"part: {name}", _number(value)) for name, value in (turn.get("components") or {}).items()]
    line = " · ".join(f"{readable(name)} {readable(value)}" for name, value in facts if not _missing(value))
    state = " open" if opened else ""
    summary = f"<summary>{readable(turn_line(turn))}</summary>"
    return f'<details class="wb-turn"{state}>{summary}<div>{line}</div>{body}</details>'


class RolloutBrowser:
    """Widgets to read the rollouts of a run as they come: choose a step and a turn, or follow the newest step."""

    def __init__(self, run: Run) -> None:
        import ipywidgets as widgets

        self.run = run
        label = {"description_width": "initial"}
        self.follow = widgets.Checkbox(value=True, description="follow the newest step", indent=False)
        self.step = widgets.BoundedIntText(value=0, min=0, max=0, description="step", style=label)
        self.turn = widgets.Select(options=[], rows=8, description="", layout=widgets.Layout(width="46em"))
        self.body = widgets.HTML()
        self.turn.tooltip = "Rollouts of the step, lowest reward first; arrow keys move."
        self.widget = widgets.VBox([widgets.HBox([self.follow, self.step]), self.turn, self.body])
        self.widget.add_class("wb-rollouts")
        self.step.observe(lambda change: self._load(change["new"]), names="value")
        self.turn.observe(lambda change: self._show(change["new"]), names="index")
        self._turns = pd.DataFrame()

    def refresh(self, newest: int) -> None:
        """Take in that `newest` is the last step recorded; called by the dashboard's clock."""
        self.step.max = max(newest, self.step.max)
        if self.follow.value and newest != self.step.value:
            self.step.value = newest

    def _load(self, step: int) -> None:
        turns = self.run.turns(step)
        self._turns = turns.sort_values("reward", kind="stable", na_position="first").reset_index(drop=True)
        lines = [turn_line(turn) for turn in self._turns.to_dict("records")]
        self.turn.options = [(f"{number + 1}. {line}", number) for number, line in enumerate(lines)]
        self._show(0 if lines else None)

    def _show(self, index: int | None) -> None:
        if index is not None and index < len(self._turns):
            self.body.value = turn_html(self._turns.iloc[index].to_dict(), opened=True)


def _tail(text: object, limit: int = 2000) -> str | None:
    return None if _missing(text) else str(text)[-limit:]


def _missing(value: object) -> bool:
    return value is None or value is pd.NA or (isinstance(value, float) and value != value)


def _number(value: Any) -> str | None:
    return None if _missing(value) else f"{value:.4g}"
