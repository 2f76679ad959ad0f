"""From groups with advantages to micro-batches of tensors. Ids sampled are ids trained: nothing is re-tokenised.

Masks come from lengths, never from token values, so a pad id that equals the end-of-text id costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.learning.losses import Denominators
from workbench.types import Group, WorkbenchError


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
    """R samples as tensors, right-padded to P prompt and C completion positions."""

    prompt_ids: Tensor
    """[R, P] int64."""
    prompt_lengths: Tensor
    """[R] int64."""
    completion_ids: Tensor
    """[R, C] int64."""
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
    whose advantages are all 0: they have no policy gradient, and counting them would shrink the step. `keep_flat`
    keeps the latter, for a KL term acts on them too. Raises WorkbenchError when shapes disagree.

    Metrics: samples, trained_tokens, samples_stale, samples_empty, samples_flat (each counted once, in this order).
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
        spread = keep_flat or any(values)
        for turn, advantage in zip(group.turns, values, strict=True):
            action = turn.action
            if advantage is None:
                continue
            if version - action.policy_version > max_staleness:
                stale += 1
            elif not action.token_ids:
                empty += 1
            elif not spread:
                flat += 1
            else:
                kept.append(
                    Sample(
                        group.prompt_ids,
                        action.token_ids,
                        action.sampler_logprobs,
                        advantage,
                        action.policy_version,
                        group.id,
                    )
                )
    return kept, {
        "samples": float(len(kept)),
        "trained_tokens": float(sum(len(sample.completion_ids) for sample in kept)),
        "samples_stale": float(stale),
        "samples_empty": float(empty),
        "samples_flat": float(flat),
    }


def denominators(samples: Sequence[Sample], max_completion_tokens: int) -> Denominators:
    """Counts over all samples of the step, whatever micro-batches they are cut into."""
    lengths = [len(sample.completion_ids) for sample in samples]
    return Denominators(sum(length > 0 for length in lengths), sum(lengths), max_completion_tokens)


def micro_batches(samples: Sequence[Sample], max_tokens: int) -> list[list[Sample]]:
    """Cut samples into micro-batches of at most `max_tokens` padded tokens (rows × longest row), longest rows first.

    Rows of similar length share a micro-batch, and the one that needs most memory comes first. Equal lengths keep their
    order, so the cut depends on the samples alone. A row over the limit gets a micro-batch of its own.
    """
    batches: list[list[Sample]] = []
    width = 0
    for sample in sorted(samples, key=lambda sample: -sample.tokens):
        if not batches or (len(batches[-1]) + 1) * width > max_tokens:
            batches.append([])
            width = sample.tokens
        batches[-1].append(sample)
    return batches


def collate(samples: Sequence[Sample], device: torch.device | str, pad: int) -> Batch:
    """Right-padded tensors of the samples on `device`; `pad` is any valid id, it is never read as a mark."""
    lengths = torch.tensor([len(sample.completion_ids) for sample in samples], dtype=torch.long)
    width = int(lengths.max()) if len(samples) else 0
    mask = torch.arange(width)[None, :] < lengths[:, None]
    prompts = [sample.prompt_ids for sample in samples]
    completions = [sample.completion_ids for sample in samples]
    return Batch(
        prompt_ids=_padded(prompts, pad, torch.long).to(device),
        prompt_lengths=torch.tensor([len(prompt) for prompt in prompts], dtype=torch.long).to(device),
        completion_ids=_padded(completions, pad, torch.long).to(device),
        loss_mask=mask.to(device),
        sampler_logprobs=_padded([sample.sampler_logprobs for sample in samples], 0.0, torch.float32).to(device),
        advantages=torch.tensor([sample.advantage for sample in samples], dtype=torch.float32).to(device),
        rows=tuple(zip(prompts, completions, strict=True)),
    )


def _padded(rows: Sequence[Sequence[float]], fill: float, dtype: torch.dtype) -> Tensor:
    width = max((len(row) for row in rows), default=0)
    padded = [[*row, *[fill] * (width - len(row))] for row in rows]
    return torch.tensor(padded, dtype=dtype).reshape(len(rows), width)
