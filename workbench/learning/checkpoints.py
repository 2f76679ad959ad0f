"""What a checkpoint holds beside the rows of the run: weights, optimizer, version, the state of every generator."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from workbench.agent.loading import SMALL
from workbench.agent.policy import Policy
from workbench.config import Config
from workbench.types import WorkbenchError

LARGE_EVERY_S = 60.0
"""Least seconds between checkpoints of a policy from `SMALL` parameters on, unless set (our choice)."""

_DAMAGE = (
    WorkbenchError,
    OSError,
    EOFError,
    ValueError,
    KeyError,
    TypeError,
    IndexError,
    RuntimeError,
    pickle.UnpicklingError,
)
"""What reading a file that is missing, cut short, or another run's raises."""


def every_s(config: Config, policy: Policy) -> float:
    """Least seconds between two checkpoints: as set, or by policy size."""
    if config.checkpoint_every_s is not None:
        return config.checkpoint_every_s
    return 0.0 if policy.parameters < SMALL else LARGE_EVERY_S


def write_checkpoint(
    folder: Path, step: int, policy: Policy, optimizer: torch.optim.Optimizer, curriculum: Mapping[str, Any]
) -> None:
    """Fill `folder` with all that decides what the next step does."""
    policy.save(folder / "policy")
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    torch.save(torch.get_rng_state(), folder / "torch_rng.pt")
    state = {
        "step": step,
        "version": policy.version,
        "curriculum": dict(curriculum),
        "python_rng": _jsonable(random.getstate()),
        "numpy_rng": _jsonable(np.random.get_state()),
    }
    (folder / "state.json").write_text(json.dumps(state))


def read_checkpoint(folder: Path, policy: Policy, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Put policy, optimizer and the process-wide generators where they were; returns the state of the curriculum.

    The device may be another than the one it was written on. Raises WorkbenchError for a file that cannot be read.
    """
    with _told(folder / "state.json") as file:
        state = json.loads(file.read_text())
        version, curriculum = int(state["version"]), dict(state["curriculum"])
        generators = _tuples(state["python_rng"]), _tuples(state["numpy_rng"])
    with _told(folder / "policy") as file:
        policy.load(file)
    policy.version = version
    with _told(folder / "optimizer.pt") as file:
        optimizer.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    with _told(folder / "torch_rng.pt") as file:
        torch.set_rng_state(torch.load(file, map_location="cpu", weights_only=True))
    random.setstate(generators[0])
    np.random.set_state(generators[1])
    return curriculum


def seed_all(seed: int) -> None:
    """Seed the process-wide generators: nothing of ours draws from these, but a library might."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@contextmanager
def _told(file: Path) -> Iterator[Path]:
    try:
        yield file
    except torch.OutOfMemoryError:
        raise
    except _DAMAGE as error:
        folder = file.parent
        steps = sorted(int(other.name) for other in folder.parent.iterdir() if other.name.isdecimal())
        older = [step for step in steps if step < int(folder.name)]
        cause = error.__cause__ or error  # the loaders' own sentence asks for another policy
        reason = str(cause).partition("\n")[0].rstrip(".") or type(cause).__name__
        raise WorkbenchError(
            f"'{file}' cannot be read ({reason}): put it back from a copy, or write the number of an older checkpoint "
            f"into '{folder.parent.parent / 'latest'}' to go on from there (there are: {older or 'none'})."
        ) from None


def _jsonable(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [_jsonable(item) for item in value] if isinstance(value, tuple | list) else value


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
