"""From groups with advantages to micro-batches of tensors. Ids sampled are ids trained: nothing is re-tokenised.

Masks come from lengths, never from token values, so a pad id that equals the end-of-text id costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.agent.prefix import common
from workbench.learning.losses import Denominators
from workbench.types import Group, Turn, WorkbenchError


@dataclass(frozen=True, slots=True)
class Sample:
    """One completion to learn from."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    sampler_logprobs: tuple[float, ...]
    """As recorded at sampling; same length as `completion_ids`."""
    advantage: float
    policy_version: int
    group_id: str
    teaches: bool = True
    """False in a group whose advantages are all 0: only a KL term acts on it."""

    def __post_init__(self) -> None:
        if len(self.completion_ids) != len(self.sampler_logprobs):
            raise WorkbenchError(
                f"A completion of group '{self.group_id}' has {len(self.completion_ids)} ids and "
                f"{len(self.sampler_logprobs)} log-probabilities: expected one of each per token."
            )

    @property
    def tokens(self) -> int:
        return len(self.prompt_ids) + len(self.completion_ids)


@dataclass(frozen=True, slots=True)
class Batch:
    """R samples: their ids, and tensors right-padded to C completion positions."""

    loss_mask: Tensor
    """[R, C] bool: True on sampled tokens and only there."""
    sampler_logprobs: Tensor
    """[R, C] fp32, 0 off the mask."""
    advantages: Tensor
    """[R] fp32."""
    rows: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    """(prompt ids, completion ids) of each row, without padding."""


def make_samples(
    groups: Sequence[Group],
    advantages: Sequence[Sequence[float | None]],
    version: int,
    max_staleness: int,
    *,
    keep_flat: bool = False,
) -> tuple[list[Sample], dict[str, float]]:
    """One sample per turn worth a gradient, in the order of the groups, and the counts of what was left out.

    `advantages` has one value per turn of each group; None (unscorable, or no baseline) leaves the turn out. Also left
    out: turns sampled more than `max_staleness` versions before `version`, completions without a token, and groups
    whose advantages are all 0: they have no policy gradient. `keep_flat` keeps the latter as samples that do not teach,
    for a KL term acts on them too. Raises WorkbenchError when shapes disagree.

    Metrics: samples and trained_tokens of all samples, samples_stale, samples_empty, and samples_flat, whether they are
    left out or kept (each turn counted once, in this order).
    """
    if len(groups) != len(advantages):
        raise WorkbenchError(f"{len(advantages)} lists of advantages for {len(groups)} groups: expected one per group.")
    kept: list[Sample] = []
    stale = empty = flat = 0
    for group, values in zip(groups, advantages, strict=True):
        if len(values) != len(group.turns):
            raise WorkbenchError(
                f"Group '{group.id}' has {len(group.turns)} turns and {len(values)} advantages: expected one per turn."
            )
        spread = any(values)
        for turn, advantage in zip(group.turns, values, strict=True):
            action = turn.action
            if advantage is None:
                continue
            if version - action.policy_version > max_staleness:
                stale += 1
            elif not action.token_ids:
                empty += 1
            else:
                flat += not spread
                if spread or keep_flat:
                    kept.append(_sample(group, turn, advantage, spread))
    return kept, {
        "samples": float(len(kept)),
        "trained_tokens": float(sum(len(sample.completion_ids) for sample in kept)),
        "samples_stale": float(stale),
        "samples_empty": float(empty),
        "samples_flat": float(flat),
    }


def _sample(group: Group, turn: Turn, advantage: float, teaches: bool) -> Sample:
    action = turn.action
    return Sample(
        group.prompt_ids,
        action.token_ids,
        action.sampler_logprobs,
        advantage,
        action.policy_version,
        group.id,
        teaches,
    )


def denominators(samples: Iterable[Sample], max_completion_tokens: int) -> Denominators:
    """Counts over samples of the whole step, whatever micro-batches they are cut into."""
    lengths = [len(sample.completion_ids) for sample in samples]
    return Denominators(sum(length > 0 for length in lengths), sum(lengths), max_completion_tokens)


def micro_batches(samples: Sequence[Sample], max_tokens: int, *, shared: bool = False) -> list[list[Sample]]:
    """Cut samples into micro-batches of at most `max_tokens` tokens; a row over the limit gets one of its own.

    Padded tokens (rows × longest row), longest rows first: rows of similar length share a micro-batch, and the one that
    needs most memory comes first. `shared`, for a model that computes common beginnings once: distinct tokens, rows
    that begin alike side by side. Equal rows keep their order, so the cut depends on the samples alone.
    """
    return _by_prefix(samples, max_tokens) if shared else _by_length(samples, max_tokens)


def _by_prefix(samples: Sequence[Sample], max_tokens: int) -> list[list[Sample]]:
    batches: list[list[Sample]] = []
    taken, last = 0, tuple[int, ...]()
    for sample in sorted(samples, key=lambda sample: sample.prompt_ids + sample.completion_ids):
        ids = sample.prompt_ids + sample.completion_ids
        new = len(ids) - common(last, ids)
        if not batches or taken + new > max_tokens:
            batches.append([])
            taken, new = 0, len(ids)
        batches[-1].append(sample)
        taken, last = taken + new, ids
    return batches


def _by_length(samples: Sequence[Sample], max_tokens: int) -> list[list[Sample]]:
    batches: list[list[Sample]] = []
    width = 0
    for sample in sorted(samples, key=lambda sample: -sample.tokens):
        if not batches or (len(batches[-1]) + 1) * width > max_tokens:
            batches.append([])
            width = sample.tokens
        batches[-1].append(sample)
    return batches


def collate(samples: Sequence[Sample], device: torch.device | str) -> Batch:
    """Right-padded tensors of the samples on `device`."""
    lengths = torch.tensor([len(sample.completion_ids) for sample in samples], dtype=torch.long)
    width = int(lengths.max()) if len(samples) else 0
    mask = torch.arange(width)[None, :] < lengths[:, None]
    logprobs = [[*sample.sampler_logprobs, *[0.0] * (width - len(sample.sampler_logprobs))] for sample in samples]
    return Batch(
        loss_mask=mask.to(device),
        sampler_logprobs=torch.tensor(logprobs, dtype=torch.float32).reshape(len(samples), width).to(device),
        advantages=torch.tensor([sample.advantage for sample in samples], dtype=torch.float32).to(device),
        rows=tuple((sample.prompt_ids, sample.completion_ids) for sample in samples),
    )
