"""`workbench bench sampler`: its figures by hand, and for real with a few states."""

from __future__ import annotations

import json

import pytest

from workbench.cli import bench_sampler
from workbench.cli.main import run_command
from workbench.config import make_config
from workbench.learning.strategies import Rewards
from workbench.learning.visits import LEAST, Visit, judge
from workbench.types import WorkbenchError

FLAT, SPREAD, SOLVED = Rewards(4, 0.0, 0.0, 0.0), Rewards(4, 0.25, 0.4, 1.0), Rewards(4, 1.0, 0.0, 1.0)


def test_figures_by_hand() -> None:
    """Six flat states and two that teach, the same at both visits: P puts these two first, whatever the strategy."""
    pairs = [(Visit(SPREAD, 0.0), Visit(SPREAD, 3.0))] * 2 + [(Visit(FLAT, 0.0), Visit(FLAT, 0.0))] * 3
    found = judge([*pairs, *[(Visit(SOLVED, 0.0), Visit(SOLVED, 0.0))] * 3], make_config(epsilon=0.0, rho_end=1.0))
    harmonic = sum(1 / rank for rank in range(1, 9))
    assert found["flat_uniform"] == pytest.approx(6 / 8)
    assert found["flat_acegrpo"] == pytest.approx(1 - 1.5 / harmonic)
    assert found["fewer_flat_acegrpo"] == pytest.approx(0.75 / (1 - 1.5 / harmonic))
    assert found["flat_learnability"] == 0
    assert "fewer_flat_learnability" not in found, "nothing is not so many times less"
    assert all(found[f"spearman_{name}"] == pytest.approx(1) for name in ("acegrpo", "variance", "regret", "std"))


def test_equal_potentials_stand_in_no_order() -> None:
    """Where P says nothing, choosing by it is choosing by chance, in whichever order the states come."""
    pairs = [(Visit(SPREAD, 0.0), Visit(FLAT, 0.0))] * 4 + [(Visit(SPREAD, 0.0), Visit(SPREAD, 1.0))] * 4
    for order in (pairs, pairs[::-1]):
        found = judge(order, make_config())
        assert found["flat_acegrpo"] == pytest.approx(found["flat_uniform"]) == pytest.approx(0.5)
        assert "spearman_acegrpo" not in found, "what is all the same has no rank"


def test_too_few_states_are_told() -> None:
    assert bench_sampler.LEAST == LEAST
    with pytest.raises(WorkbenchError, match="Only 1 states were measured twice: expected 8 or more"):
        judge([(Visit(SPREAD, 0.0), Visit(SPREAD, 0.0))], make_config())


def test_a_policy_visits_states_twice(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "sampler", "--states", "12", "--group-size", "4", "--repeats", "1", "--json"]
    assert run_command(words) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found["sampler"] == {"policy": "tiny", "states": found["sampler"]["states"], "group_size": 4}
    assert 8 <= found["sampler"]["states"] <= 12
    assert 0 <= found["results"]["flat_acegrpo"]["median"] <= 1
    assert all(-1 <= row["median"] <= 1 for name, row in found["results"].items() if name.startswith("spearman"))
    assert "round 1 of 1: second visits" in captured.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--states", "7"], "states=7 is not accepted: expected at least 8."),
        (["--prompts", "4"], "--prompts does not go with the sampler: leave it out."),
        (["--against", "trl"], "--against trl goes with a model: expected generation, training, step or all."),
    ],
)
def test_a_mistake_is_one_sentence(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["bench", "sampler", *words]) == 1
    assert capsys.readouterr().err.strip().startswith(sentence)
