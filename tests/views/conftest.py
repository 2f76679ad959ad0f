"""Tables as `Run.metrics()` and `Run.turns()` give them, made from a seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from workbench.config import Config
from workbench.run import Run
from workbench.types import Action, Feedback, Group, Kind, Reward, State, StopReason, Turn, Verdict

ATTACK = "print('</script><script>alert(1)</script><img src=x onerror=alert(2)>')"


def make_metrics(steps: int, seed: int = 0) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    step = np.arange(1, steps + 1)
    learnt = 1 / (1 + np.exp(-(step - steps / 3) / (steps / 8 + 1)))
    noise = lambda scale: random.normal(0, scale, steps)  # noqa: E731
    table = {
        "step": step,
        "at": 1.7e9 + step,
        "reward_mean": np.clip(0.1 + 0.6 * learnt + noise(0.05), 0, 1),
        "flat_share": np.clip(0.3 + noise(0.1), 0, 1),
        "valid_action_rate": np.clip(0.2 + 0.7 * learnt + noise(0.05), 0, 1),
        "valid_action_rate_draft": np.clip(0.2 + 0.7 * learnt + noise(0.1), 0, 1),
        "valid_action_rate_debug": np.where(random.random(steps) < 0.3, np.nan, 0.5),
        "valid_action_rate_improve": np.where(step < 3, np.nan, 0.8),
        "loss": noise(0.02),
        "grad_norm": random.gamma(4, 0.3, steps),
        "entropy": 0.9 - 0.4 * learnt,
        "kl_old": np.abs(noise(1e-3)),
        "clip_low_share": np.abs(noise(0.02)),
        "clip_high_share": np.abs(noise(0.03)),
        "executions": 32.0,
        "seconds": 4 + noise(0.2),
        "seconds_choose": 0.001,
        "seconds_generate": 2.0,
        "seconds_execute": 0.5,
        "seconds_update": 0.9,
    }
    return pd.DataFrame(table)


def make_turns(steps: int, size: int = 16, seed: int = 0) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    names = ["no_code", "syntax", "missing_values", "text_columns", "wrong_columns", "timeout", "shape", "nan", "key"]
    rows = []
    for step in range(1, steps + 1):
        for member in range(size):
            valid = random.random() < 0.2 + 0.7 * step / steps
            failure = None if valid else names[min(int(random.exponential(2)), len(names) - 1)]
            lost = step == 2 and member == 0
            rows.append(
                {
                    "step": step,
                    "group_id": f"g{step}-{member // 8}",
                    "trajectory_id": f"t{step}-{member}",
                    "stage": "draft#1",
                    "state": "s",
                    "task": ["iris", "wine"][member // 8],
                    "kind": "draft",
                    "text": f"```python\n# {step} {member}\n{ATTACK}\n```",
                    "stop_reason": "eos",
                    "verdict": "infrastructure" if lost else "ok" if valid else "runtime_error",
                    "failure": failure,
                    "reason": None if valid else "KeyError: <b>'target'</b>",
                    "stdout": "Validation score: 0.7\n",
                    "stderr": "",
                    "own_score": 0.7 if valid else None,
                    "score": 0.71 if valid else None,
                    "reward": None if lost else 0.2 + 0.8 * random.random() if valid else 0.05,
                    "components": {"valid": float(valid)},
                }
            )
    return pd.DataFrame(rows)


@pytest.fixture
def metrics() -> pd.DataFrame:
    return make_metrics(50)


@pytest.fixture
def table_of() -> Callable[[int], pd.DataFrame]:
    return make_metrics


@pytest.fixture
def turns() -> pd.DataFrame:
    return make_turns(20)


@pytest.fixture
def measured() -> tuple[dict, dict]:
    def one(valid: float, reward: float, failures: dict[str, int]) -> dict:
        values = {"valid_action_rate": valid, "reward": reward, "position": 0.4, "failures": failures, "drafts": 64}
        return {**values, "tasks": {"iris": dict(values), "wine": {**values, "position": None}}}

    return one(0.25, 0.2, {"syntax": 30, "text_columns": 18}), one(0.9, 0.6, {"syntax": 4, "timeout": 2})


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """A run folder with three steps of one group each, two of four actions valid in the last."""
    run = Run.create(tmp_path / "run", Config(steps=5), {"isolation_level": "A", "torch": "2.13"})
    for step in (1, 2, 3):
        row = make_metrics(3).drop(columns=["at"]).iloc[step - 1].dropna().to_dict()
        run.commit(step, groups=[make_group(step)], metrics={k: v for k, v in row.items() if k != "step"})
    yield run
    run.close()


def make_group(step: int) -> Group:
    state = State("iris", Kind.DRAFT)
    turns = []
    for member in range(4):
        valid = member < step - 1
        text = f"```python\n# {step} {member}\n{ATTACK}\n```"
        action = Action(text, (1, 2), (-0.5, -0.5), step - 1, StopReason.EOS)
        feedback = Feedback(
            Verdict.OK if valid else Verdict.RUNTIME_ERROR,
            text,
            failure=None if valid else "syntax",
            reason=None if valid else "SyntaxError: <b>bad</b>",
            score=0.8 if valid else None,
        )
        turns.append(Turn(state, action, feedback, Reward(0.6 if valid else 0.05, {"valid": float(valid)}), "g", "t"))
    return Group(f"g{step}", state, (1, 2, 3), tuple(turns))


class Messages:
    """Counts what would go to a front end."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def updates(self) -> list[dict[str, Any]]:
        return [message for message in self.sent if message.get("method") == "update"]


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> Messages:
    """Replaces the channel between widgets and front end by one that counts."""
    import comm
    from comm.base_comm import BaseComm

    found = Messages()

    class Counting(BaseComm):
        def publish_msg(self, msg_type: str, data: Any = None, **_: Any) -> None:
            found.sent.append({"type": msg_type, **(data or {})})

    monkeypatch.setattr(comm, "create_comm", lambda *args, **kwargs: Counting(*args, **kwargs))
    return found
