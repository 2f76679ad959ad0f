"""Settings that are refused: the value, what was expected, and what to do, in one sentence."""

from __future__ import annotations

from typing import Any

import pytest

from workbench.config import Config, accepted, change, make_config
from workbench.types import WorkbenchError


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {"steps": "0"},
            "steps='0' is not accepted: expected a whole number from 1 to 1000000; give one, such as the default "
            "steps=40.",
        ),
        (
            {"loss": "ppo"},
            "loss='ppo' is not accepted: expected grpo, dr_grpo, dapo, gspo or cispo; give one, such as the default "
            "loss=dapo.",
        ),
        ({"learning_rate": 0}, "expected a number above 0 and at most 1 or None; give one, such as the default "),
        ({"clip_low": 1}, "clip_low=1 is not accepted: expected a number of at least 0 and below 1; give one, such as"),
        ({"micro_batch_tokens": 2.5}, "expected a whole number of at least 64; give one"),
        ({"buffer": "perhaps"}, "buffer='perhaps' is not accepted: expected true or false; give one"),
        ({"policy": 3}, "policy=3 is not accepted: expected text; give one"),
        ({"steps": True}, "steps=True is not accepted: expected a whole number from 1"),
        (
            {"seed": float("nan")},
            "seed=nan is not accepted: expected a whole number of at least 0 and below 2147483648",
        ),
        ({"mismatch": "mask"}, "the mismatch weight is 1; set ratio=decoupled or mismatch=none."),
        ({"steps": 0, "tau": -1}, "the default steps=40; tau=-1 is not accepted: expected"),
    ],
)
def test_a_refusal_says_what_is_accepted_and_names_a_value_that_is(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(WorkbenchError) as caught:
        make_config(values)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize("name", Config.model_fields)
def test_of_every_setting_it_can_be_said_what_it_takes_and_its_default_can_be_given(name: str) -> None:
    assert accepted(name)
    default = getattr(make_config(), name)
    assert getattr(change(make_config(), **{name: None if default is None else str(default)}), name) == default
