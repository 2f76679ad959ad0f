"""The optimizer step: log-probabilities, loss and gradient over micro-batches whose sums make one whole step."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from workbench.agent.attention import shares_prefix
from workbench.agent.logprobs import completion_logprobs
from workbench.agent.policy import Policy
from workbench.config import Config
from workbench.learning.batch import Batch, Sample, collate, denominators, micro_batches
from workbench.learning.losses import LossConfig, finalise, merge, policy_loss


def update(
    policy: Policy, optimizer: torch.optim.Optimizer, samples: Sequence[Sample], config: Config
) -> dict[str, float]:
    """`config.iterations` optimizer steps on one batch of samples; raises the policy's version by one.

    The denominators count the whole step, so how it is cut into micro-batches changes nothing: the surrogate's the
    samples that teach, the KL term's all of them. A step whose loss or gradient is not finite is skipped and counted;
    without samples nothing happens.
    """
    if not samples:
        return {"samples": 0.0, "skipped_updates": 0.0}
    cut = micro_batches(samples, config.micro_batch_tokens, shared=shares_prefix(policy.model))
    batches = [collate(part, policy.device) for part in cut]
    old = [batch.sampler_logprobs if config.ratio == "recorded" else None for batch in batches]
    reference = _reference_logprobs(policy, batches, config)
    whole = denominators((sample for sample in samples if sample.teaches), config.max_completion_tokens)
    restrained = denominators(samples, config.max_completion_tokens)
    settings = LossConfig.from_config(config)
    metrics: dict[str, float] = {}
    skipped = 0
    for _ in range(config.iterations):
        optimizer.zero_grad(set_to_none=True)
        parts = []
        for number, (batch, ref_logprobs) in enumerate(zip(batches, reference, strict=True)):
            logprobs, _, entropy = completion_logprobs(
                policy.model, batch.rows, config.temperature, pad_id=policy.pad_id, entropy=True
            )
            if (anchor := old[number]) is None:  # recomputed: with the weights before the first step, which are these
                anchor = old[number] = logprobs.detach()
            loss, part = policy_loss(
                logprobs,
                anchor,
                batch.sampler_logprobs,
                ref_logprobs,
                batch.advantages,
                batch.loss_mask,
                settings,
                whole,
                kl_denominators=restrained,
                entropy=entropy,
            )
            loss.backward()
            parts.append(part)
        grad_norm = float(torch.nn.utils.clip_grad_norm_(list(policy.trainable()), config.max_grad_norm))
        metrics = finalise(merge(parts))
        metrics["grad_norm"] = grad_norm
        if math.isfinite(grad_norm) and math.isfinite(metrics["loss"]):
            optimizer.step()
        else:
            skipped += 1
    optimizer.zero_grad(set_to_none=True)
    policy.version += 1
    return {**metrics, "samples": float(len(samples)), "skipped_updates": float(skipped)}


def make_optimizer(policy: Policy, learning_rate: float) -> torch.optim.AdamW:
    """AdamW without weight decay on what is trained, in one kernel where torch has one."""
    fused = policy.device.type in ("cpu", "cuda")
    weights = list(policy.trainable())
    return torch.optim.AdamW(weights, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=fused)


def decay(step: int, config: Config) -> float:
    """Factor of the learning rate at `step` (1-based): 1, over the last `learning_rate_decay` of the steps falling
    linearly to 0.1 (our choice). A function of step and settings alone, so that a resumed run goes on with it.
    """
    length = config.learning_rate_decay * config.steps
    into = step - (config.steps - length)
    return 1.0 if length == 0 or into <= 0 else 1.0 - 0.9 * min(into / length, 1.0)


def _reference_logprobs(policy: Policy, batches: Sequence[Batch], config: Config) -> list[torch.Tensor | None]:
    if config.kl_coef == 0:
        return [None] * len(batches)
    with policy.reference() as model, torch.no_grad():
        return [completion_logprobs(model, b.rows, config.temperature, pad_id=policy.pad_id)[0] for b in batches]
