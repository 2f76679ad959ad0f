"""What happens to the curriculum, as frozen records: applied in order, they rebuild it exactly.

A record holds what was decided or drawn (a tie key, the P that a visit led to), never what a later setting could
change, so replaying needs no configuration and no generator. It holds no code: a million states fit into memory, and
their scripts need not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workbench.types import Kind


@dataclass(frozen=True, slots=True)
class Added:
    """A state entered the buffer. What it says (code, error, output, score) is kept beside the events, by its id."""

    step: int
    state_id: str
    identity: str
    """What `identity` (buffer.py) says of it: no equal state enters after it."""
    task: str
    kind: Kind
    parent: str | None
    root: bool
    potential: float
    """P until its first visit: 1 for a root, inherited for a child."""
    tie: float
    """Drawn once; orders states of equal P."""


@dataclass(frozen=True, slots=True)
class Evicted:
    """A child left the buffer; an equal one is never added again."""

    step: int
    state_id: str


@dataclass(frozen=True, slots=True)
class Chosen:
    """A state was chosen to act in; it rests from then on."""

    step: int
    state_id: str
    potential: float
    """P at that moment."""


@dataclass(frozen=True, slots=True)
class Observed:
    """The rewards of a chosen state's group came in."""

    step: int
    state_id: str
    scored: int
    """Members with a reward."""
    mean: float
    std: float
    best: float
    potential: float
    """P after this visit."""


Event = Added | Evicted | Chosen | Observed

_TYPES: dict[str, type[Event]] = {"added": Added, "evicted": Evicted, "chosen": Chosen, "observed": Observed}
_NAMES = {type_: name for name, type_ in _TYPES.items()}


def to_dict(event: Event) -> dict[str, Any]:
    """Flat and ready for JSON: the record's fields, and its name under `event`."""
    fields = {name: getattr(event, name) for name in event.__slots__}
    if isinstance(event, Added):
        fields["kind"] = event.kind.value
    return {"event": _NAMES[type(event)], **fields}


def from_dict(values: Mapping[str, Any]) -> Event:
    """The inverse of `to_dict`; fields that a store adds are ignored. Raises KeyError for an unknown event."""
    type_ = _TYPES[values["event"]]
    fields = {name: values[name] for name in type_.__slots__}
    if type_ is Added:
        fields["kind"] = Kind(fields["kind"])
    return type_(**fields)
