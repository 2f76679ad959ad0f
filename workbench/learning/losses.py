"""Policy losses as pure functions: per-token loss × aggregation, with the denominators of the whole step.

A loss is a row of the table `OBJECTIVES`: at which level importance ratios are formed (token or sequence), what one
token contributes, and how tokens are summed. Nothing else depends on the loss's name.

`|loss| ≈ 0` at the first on-policy step is right, not a fault. Before the first update policy = old, so every ratio is
1 and the loss is minus the average advantage, and advantages are centred inside their group. The value says nothing
about learning; the gradient does, because each token's advantage multiplies a different ∇logprob, which do not cancel.
Watch `grad_norm`, `advantage_abs_mean` and the reward. Rows of different length leave a small remainder under the
token and the constant mean; `cispo` weighs log-probabilities and not ratios, so its value is not near 0 at all.

Shapes: R rows (one completion each), C completion positions. Log-probabilities are natural logarithms of the sampled
tokens' probabilities. Everything is computed in fp32, whatever the dtype of the inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from workbench.config import Config, Loss
from workbench.types import WorkbenchError

LOG_BOUND = 20.0
"""Largest log ratio that is exponentiated (e^20 ≈ 4.9e8): beyond it values stay constant and carry no gradient."""


@dataclass(frozen=True, slots=True)
class LossConfig:
    """The settings that a loss depends on; the fields of `Config` of the same names."""

    loss: Loss = "dapo"
    clip_low: float = 0.2
    clip_high: float = 0.28
    ratio_cap: float = 5.0
    """CISPO only: an absolute cap of the ratio, not an offset from 1."""
    kl_coef: float = 0.0
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    mismatch: Literal["none", "truncate", "mask"] = "none"
    mismatch_cap: float = 2.0

    @classmethod
    def from_config(cls, config: Config) -> LossConfig:
        return cls(**{name: getattr(config, name) for name in cls.__slots__})


@dataclass(frozen=True, slots=True)
class Denominators:
    """Counts over the WHOLE optimizer step, given to every micro-batch, so that their losses and gradients add up."""

    rows: int
    """Completions with at least one trained token."""
    tokens: int
    """Trained tokens."""
    max_length: int
    """The completion limit: dr_grpo's constant."""


@dataclass(frozen=True, slots=True)
class Sums:
    """What one micro-batch adds to the step's metrics: detached scalars that `merge` adds and `finalise` divides."""

    totals: Mapping[str, Tensor]
    """Reported as the step's sum."""
    per_token: Mapping[str, Tensor]
    """Sums over trained tokens, reported as the step's mean per trained token."""
    maxima: Mapping[str, Tensor]


# --- how far apart two policies are


def kl(estimator: str, policy_logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Per-token estimate of KL(policy ‖ reference) from tokens sampled by the policy; same shape as the inputs.

    With x = log(policy/ref) (Schulman 2020, "Approximating KL divergence"):
    k1 = x: unbiased value, but its gradient is 0 in expectation, so it does not restrain when it stands in a loss;
    k2 = x²/2: biased value, its gradient is that of the KL;
    k3 = exp(-x) - 1 + x: unbiased value, never negative.
    k3's -x is bounded by `LOG_BOUND` in both of its terms, so that value and gradient are finite, and the gradient
    never has the wrong sign (bounding only the exponential would push a too improbable token further down).
    """
    x = policy_logprobs - ref_logprobs
    return _KL[estimator](x)


def _k1(x: Tensor) -> Tensor:
    return x


def _k2(x: Tensor) -> Tensor:
    return x.square() / 2


def _k3(x: Tensor) -> Tensor:
    bounded = x.clamp(min=-LOG_BOUND)
    return torch.expm1(-bounded) + bounded


_KL: dict[str, Callable[[Tensor], Tensor]] = {"k1": _k1, "k2": _k2, "k3": _k3}


# --- the level at which ratios are formed; [R, C] log ratios and mask → [R, C]


def _token(log_ratio: Tensor, mask: Tensor) -> Tensor:
    return log_ratio


def _sequence_mean(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """The row's mean log ratio at each of its positions: log of (policy/old of the completion)^(1/length)."""
    lengths = mask.sum(1, keepdim=True).clamp(min=1)
    return (log_ratio.sum(1, keepdim=True) / lengths).expand_as(log_ratio)


def _sequence_sum(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """The row's log ratio at each of its positions: log of old/sampler of the whole completion."""
    return log_ratio.sum(1, keepdim=True).expand_as(log_ratio)


# --- what one token contributes


class PerToken(NamedTuple):
    """Loss per token [R, C], and the bounds beyond which a ratio counts as clipped."""

    loss: Tensor
    low: float
    high: float


def clipped(policy_logprobs: Tensor, ratio: Tensor, advantages: Tensor, config: LossConfig) -> PerToken:
    """-min(ratio·A, clip(ratio, 1 - clip_low, 1 + clip_high)·A) (PPO, Schulman et al. 2017; clip-higher: DAPO 2025)."""
    low, high = 1 - config.clip_low, 1 + config.clip_high
    loss = -torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)
    return PerToken(loss, low, high)


def capped(policy_logprobs: Tensor, ratio: Tensor, advantages: Tensor, config: LossConfig) -> PerToken:
    """-min(ratio, ratio_cap)·A·logprob, the weight detached: no token loses its gradient (CISPO, MiniMax-M1 2025)."""
    weight = ratio.detach().clamp(max=config.ratio_cap)
    return PerToken(-weight * advantages * policy_logprobs, 0.0, config.ratio_cap)


# --- how tokens are summed; [R, C] losses that are 0 off the mask → scalar


def sequence_mean(loss: Tensor, mask: Tensor, denominators: Denominators) -> Tensor:
    """Mean over each row's tokens, then over rows: a token of a long row weighs less (GRPO, DeepSeekMath 2024)."""
    return (loss.sum(1) / mask.sum(1).clamp(min=1)).sum() / max(denominators.rows, 1)


def constant_mean(loss: Tensor, mask: Tensor, denominators: Denominators) -> Tensor:
    """Sum / (rows · max_length): no length in the denominator, so none in the gradient (Dr. GRPO, Liu et al. 2025)."""
    return loss.sum() / max(denominators.rows * denominators.max_length, 1)


def token_mean(loss: Tensor, mask: Tensor, denominators: Denominators) -> Tensor:
    """Mean over all trained tokens of the step, each weighing the same (DAPO, Yu et al. 2025)."""
    return loss.sum() / max(denominators.tokens, 1)


# --- the table


class Objective(NamedTuple):
    """One loss. A sequence-level ratio is weighed against the sampler with the whole completion's mismatch."""

    importance: Callable[[Tensor, Tensor], Tensor]
    mismatch: Callable[[Tensor, Tensor], Tensor]
    per_token: Callable[[Tensor, Tensor, Tensor, LossConfig], PerToken]
    aggregate: Callable[[Tensor, Tensor, Denominators], Tensor]


OBJECTIVES: dict[Loss, Objective] = {
    "grpo": Objective(_token, _token, clipped, sequence_mean),
    "dr_grpo": Objective(_token, _token, clipped, constant_mean),
    "dapo": Objective(_token, _token, clipped, token_mean),
    # GSPO (Zheng et al. 2025): length-normalised ratios lie near 1; its authors clip at 3e-4 below and 4e-4 above.
    "gspo": Objective(_sequence_mean, _sequence_sum, clipped, sequence_mean),
    "cispo": Objective(_token, _token, capped, token_mean),
}


def mismatch_weight(log_mismatch: Tensor, mode: str, cap: float) -> Tensor:
    """Weight of old/sampler, detached: 1, min(w, cap) (TIS, Yao et al. 2025) or w·1[w ≤ cap] (masked; same source).

    It depends on nothing that an update changes, so inner iterations leave it as it is. The cap is applied to the
    logarithm, so a completion's product over thousands of tokens stays finite. Tokens masked here stay in the
    denominators.
    """
    log_cap = math.log(cap)
    if mode == "none":
        return torch.ones_like(log_mismatch)
    weight = log_mismatch.detach().clamp(max=log_cap).exp()
    return weight if mode == "truncate" else torch.where(log_mismatch > log_cap, 0.0, weight)


def policy_loss(
    policy_logprobs: Tensor,
    old_logprobs: Tensor,
    sampler_logprobs: Tensor,
    ref_logprobs: Tensor | None,
    advantages: Tensor,
    loss_mask: Tensor,
    config: LossConfig,
    denominators: Denominators,
    *,
    kl_denominators: Denominators | None = None,
    entropy: Tensor | None = None,
) -> tuple[Tensor, Sums]:
    """The part of the step's loss that these rows make, and their part of its metrics.

    `policy_logprobs` [R, C] carries the gradient; `old_`, `sampler_`, `ref_logprobs` and `entropy` [R, C] do not (they
    are detached); `advantages` [R]; `loss_mask` [R, C] bool or 0/1. The sum over micro-batches with the same
    `denominators` is the loss of the step, and its gradient that of the step, however the rows are cut. The surrogate
    is divided by `denominators`, the KL term by `kl_denominators` (None: the same): it acts on more rows where some
    have advantage 0 because they teach nothing, and these must not shrink the surrogate.
    Values off the mask, NaN included, reach neither loss nor gradient nor metrics; without a trained token the loss is
    0 with gradient 0. Reference terms exist only where `ref_logprobs` is given. Raises WorkbenchError when
    `config.kl_coef` > 0 without it, or when shapes disagree.
    """
    _check(policy_logprobs, old_logprobs, sampler_logprobs, ref_logprobs, advantages, loss_mask, entropy, config)
    objective = OBJECTIVES[config.loss]
    mask = loss_mask.bool()
    policy = _only(mask, policy_logprobs)
    old, sampler = _only(mask, old_logprobs.detach()), _only(mask, sampler_logprobs.detach())
    ref = None if ref_logprobs is None else _only(mask, ref_logprobs.detach())
    advantage = advantages.detach().float()[:, None]

    log_ratio = objective.importance(policy - old, mask)
    ratio = log_ratio.clamp(-LOG_BOUND, LOG_BOUND).exp()
    log_mismatch = objective.mismatch(old - sampler, mask)
    weight = mismatch_weight(log_mismatch, config.mismatch, config.mismatch_cap)
    term = objective.per_token(policy, ratio, advantage, config)
    loss = objective.aggregate(_only(mask, weight * term.loss), mask, denominators)
    means = _per_token_metrics(policy, old, sampler, log_ratio, log_mismatch, weight, term, advantage, config)
    if ref is not None:
        means["kl_ref"] = kl(config.kl_estimator, policy, ref)
        restraint = objective.aggregate(_only(mask, means["kl_ref"]), mask, kl_denominators or denominators)
        loss = loss + config.kl_coef * restraint
    if entropy is not None:
        means["entropy"] = entropy
    sums = Sums(
        totals={"loss": loss.detach(), "tokens": mask.sum(), "rows": mask.any(1).sum()},
        per_token={name: _only(mask, value.detach()).sum() for name, value in means.items()},
        maxima={"ratio_max": _only(mask, ratio.detach()).amax()} if mask.any() else {},
    )
    return loss, sums


@torch.no_grad()
def _per_token_metrics(
    policy: Tensor,
    old: Tensor,
    sampler: Tensor,
    log_ratio: Tensor,
    log_mismatch: Tensor,
    weight: Tensor,
    term: PerToken,
    advantage: Tensor,
    config: LossConfig,
) -> dict[str, Tensor]:
    """[R, C] values whose means over trained tokens are the metrics of `finalise`."""
    ratio = log_ratio.clamp(-LOG_BOUND, LOG_BOUND).exp()
    positive, negative = advantage > 0, advantage < 0
    low, high = ratio < term.low, ratio > term.high
    return {
        "ratio_mean": ratio,
        "ratio_bounded_share": log_ratio.abs() > LOG_BOUND,
        "clip_low_share": low,
        "clip_high_share": high,
        "clip_low_share_positive": low & positive,
        "clip_low_share_negative": low & negative,
        "clip_high_share_positive": high & positive,
        "clip_high_share_negative": high & negative,
        "kl_old": _k3(old - policy),
        "kl_mismatch": _k3(sampler - old),
        "mismatch_capped_share": log_mismatch > math.log(config.mismatch_cap),
        "mismatch_weight": weight,
        "mismatch_weight_squared": weight.square(),
    }


def merge(parts: Sequence[Sums]) -> Sums:
    """The sums of several micro-batches as one, on the CPU in fp64."""
    return Sums(
        totals=_combine([part.totals for part in parts], torch.sum),
        per_token=_combine([part.per_token for part in parts], torch.sum),
        maxima=_combine([part.maxima for part in parts], torch.amax),
    )


def finalise(sums: Sums) -> dict[str, float]:
    """Plain numbers of one step, per trained token unless said otherwise; what has no token behind it is left out.

    loss, tokens, rows (counts of the step); ratio_mean, ratio_max; ratio_bounded_share (log ratio beyond LOG_BOUND);
    clip_low_share, clip_high_share: ratios beyond the clip bounds, each also split by the advantage's sign. Under the
    clipped losses `low…negative` and `high…positive` have lost their gradient; the other two are undoing a push and
    keep it. kl_old: k3 of KL(old ‖ policy). kl_mismatch: k3 of KL(sampler ‖ old). mismatch_capped_share: weights at
    or over their cap, counted even in mode none. mismatch_ess: (Σw)² / (n Σw²) of the weights used, 1 when all are
    equal. kl_ref (only with a reference), entropy (only if given), nats.
    """
    metrics = {name: float(value) for name, value in sums.totals.items()}
    tokens = metrics["tokens"]
    if tokens:
        metrics |= {name: float(value) / tokens for name, value in sums.per_token.items()}
        metrics |= {name: float(value) for name, value in sums.maxima.items()}
        mean, square = metrics.pop("mismatch_weight"), metrics.pop("mismatch_weight_squared")
        metrics["mismatch_ess"] = mean**2 / square if square > 0 else 0.0
    return metrics


def _combine(parts: Sequence[Mapping[str, Tensor]], reduce: Callable[..., Tensor]) -> dict[str, Tensor]:
    found: dict[str, list[Tensor]] = {}
    for part in parts:
        for name, value in part.items():
            found.setdefault(name, []).append(value.detach().cpu().double())
    return {name: reduce(torch.stack(values), dim=0) for name, values in found.items()}


def _only(mask: Tensor, values: Tensor) -> Tensor:
    """fp32 values on the mask, exactly 0 elsewhere. `where`, not a product: NaN · 0 is NaN, in value and gradient."""
    return torch.where(mask, values.float(), 0.0)


def _check(
    policy: Tensor,
    old: Tensor,
    sampler: Tensor,
    ref: Tensor | None,
    advantages: Tensor,
    loss_mask: Tensor,
    entropy: Tensor | None,
    config: LossConfig,
) -> None:
    named = {"old_logprobs": old, "sampler_logprobs": sampler, "ref_logprobs": ref, "loss_mask": loss_mask}
    for name, value in {**named, "entropy": entropy}.items():
        if value is not None and value.shape != policy.shape:
            expected = tuple(policy.shape)
            raise WorkbenchError(f"{name} has shape {tuple(value.shape)}: expected {expected}, as policy_logprobs.")
    if advantages.shape != policy.shape[:1]:
        raise WorkbenchError(
            f"advantages have shape {tuple(advantages.shape)}: expected ({policy.shape[0]},), one per row."
        )
    if config.kl_coef > 0 and ref is None:
        raise WorkbenchError(f"kl_coef={config.kl_coef} without ref_logprobs: give them, or set kl_coef=0.")
