from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from workbench.agent.policy import Policy, load_policy
from workbench.config import make_config
from workbench.learning.checkpoints import every_s, read_checkpoint, seed_all, write_checkpoint
from workbench.types import WorkbenchError


def make(policy_folder: Path) -> tuple[Policy, torch.optim.Optimizer]:
    """The policy and an optimizer that has made a step, so that it has a state."""
    policy = load_policy(make_config(policy=str(policy_folder), device="cpu", dtype="float32"))
    optimizer = torch.optim.AdamW(list(policy.trainable()), lr=0.1)
    for parameter in policy.trainable():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return policy, optimizer


@pytest.fixture
def written(policy_folder: Path, tmp_path: Path) -> tuple[Path, Policy, torch.optim.Optimizer]:
    """`checkpoints/1` and `checkpoints/2` of a run, and what they were written of."""
    policy, optimizer = make(policy_folder)
    policy.version = 7
    seed_all(3)
    for step in (1, 2):
        folder = tmp_path / "run" / "checkpoints" / str(step)
        folder.mkdir(parents=True)
        write_checkpoint(folder, step, policy, optimizer, {"random": [1, 2]})
    return folder, policy, optimizer


def draws() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(1))


def test_what_is_written_comes_back_equal(
    written: tuple[Path, Policy, torch.optim.Optimizer], policy_folder: Path
) -> None:
    folder, policy, optimizer = written
    expected = draws()
    other, fresh = make(policy_folder)
    with torch.no_grad():
        for parameter in other.trainable():
            parameter.add_(1)
    assert read_checkpoint(folder, other, fresh) == {"random": [1, 2]}
    assert other.version == 7
    assert draws() == expected
    assert all(torch.equal(a, b) for a, b in zip(policy.trainable(), other.trainable(), strict=True))
    one, two = optimizer.state_dict()["state"], fresh.state_dict()["state"]
    assert all(torch.equal(one[n][key], two[n][key]) for n in one for key in one[n])
    assert one


@pytest.mark.parametrize("name", ["state.json", "optimizer.pt", "torch_rng.pt", "policy"])
@pytest.mark.parametrize("damage", ["missing", "cut", "other"])
def test_a_file_that_cannot_be_read_is_named_with_the_way_out(
    written: tuple[Path, Policy, torch.optim.Optimizer], name: str, damage: str
) -> None:
    folder, policy, optimizer = written
    file = folder / name
    if name == "policy":
        file /= "model.safetensors"
    if damage == "missing":
        file.unlink()
    elif damage == "cut":
        file.write_bytes(file.read_bytes()[:100])
    elif name == "state.json":
        file.write_text("[]")
    else:
        torch.save({"state": "another"}, file)
    with pytest.raises(
        WorkbenchError, match=rf"{name}' cannot be read .*older checkpoint into .*there are: \[1\]"
    ) as told:
        read_checkpoint(folder, policy, optimizer)
    assert f"'{folder.parent.parent / 'latest'}'" in str(told.value)
    assert "\n" not in str(told.value)


def test_tensors_of_a_device_that_is_not_there_are_read(
    written: tuple[Path, Policy, torch.optim.Optimizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a GPU's checkpoint on a machine without one: without a place to put them, torch refuses to load them."""
    folder, policy, optimizer = written
    asked: list[object] = []
    load = torch.load
    monkeypatch.setattr(
        torch, "load", lambda *args, **more: asked.append(more.get("map_location")) or load(*args, **more)
    )
    read_checkpoint(folder, policy, optimizer)
    assert asked == ["cpu", "cpu"]


def test_large_policies_are_saved_less_often(policy_folder: Path) -> None:
    policy, _ = make(policy_folder)
    assert every_s(make_config(), policy) == 0
    policy.parameters = 100_000_000
    assert every_s(make_config(), policy) == 60
    assert every_s(make_config(checkpoint_every_s=0), policy) == 0
