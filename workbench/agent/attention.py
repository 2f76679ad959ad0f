"""Attention over a forest of shared prefixes, as an attention function of transformers.

Every token attends to the tokens above it in its tree and to those before it in its own node. Per node that is one
causal call of the kernel on its own tokens, and one call without mask in which all tokens below it, of however many
sequences, attend to it. The partial results are merged by their log-sum-exp, and the backward pass of each call is
given the merged ones: softmax(s)·v over several key sets is the sum of the parts weighted by exp(lse_part - lse), and
the gradient of each part is the kernel's own for the whole's output and log-sum-exp (the identity behind ring
attention). Keys and values of a prefix exist once, and query heads that share a key head read it in place.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache
from transformers.cache_utils import DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from workbench.agent.kernels import kernel_dtype, kernel_of
from workbench.agent.prefix import Forest, Node, Past, pack

log = logging.getLogger(__name__)

NAME = "shared_prefix"

BEYOND = ("softcap", "sliding_window", "s_aux", "position_bias")
"""What families ask of their attention that this one does not do."""
JUMP = 400
"""Between positions of the probe: turns by an angle that is off show over a distance. The next jump is to the last."""
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 1e-1, torch.float16: 2e-2, torch.float64: 1e-6}
"""Of the probe that decides whether a model can share prefixes."""


class _ForestAttention(torch.autograd.Function):
    """query [1, H, N, D], key and value [1, K, N, D] → [1, N, H, D]."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, nodes: Sequence[Node], scale: float) -> Tensor:
        out, sums = attend(*_grouped(query, key, value), nodes, (), scale)
        out = out.to(query.dtype)
        ctx.save_for_backward(query, key, value, out, sums)
        ctx.nodes, ctx.scale = nodes, scale
        return out.flatten(0, 1).transpose(0, 1).unsqueeze(0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, sums = ctx.saved_tensors
        above = grad[0].transpose(0, 1).view_as(out)
        found = attend_backward(above, *_grouped(query, key, value), out, sums, ctx.nodes, ctx.scale)
        return (*(one.view_as(of).to(of.dtype) for one, of in zip(found, (query, key, value), strict=True)), None, None)


def attend(
    queries: Tensor, keys: Tensor, values: Tensor, nodes: Sequence[Node], past: Sequence[Past], scale: float
) -> tuple[Tensor, Tensor]:
    """Attention of queries [K, H / K, N, D] to keys and values [K, N, D] of their forest, and to those of a past.

    Returns the output [K, H / K, N, D], in the dtype of the kernel, and the log-sum-exp of the scores [K, H / K, N].
    """
    dtype = kernel_dtype(queries)
    kernel = kernel_of(queries.device.type, dtype)
    queries, keys, values = queries.to(dtype), _repeated(keys.to(dtype), queries), _repeated(values.to(dtype), queries)
    out = torch.empty_like(queries)
    sums = queries.new_empty(queries.shape[:3], dtype=torch.promote_types(dtype, torch.float32))
    for node in nodes:
        own = slice(node.start, node.stop)
        out[:, :, own], sums[:, :, own] = kernel.forward(
            queries[:, :, own], keys[:, :, own], values[:, :, own], True, scale
        )
    for node in nodes:
        if node.end > node.stop:
            own, below = slice(node.start, node.stop), slice(node.stop, node.end)
            part = kernel.forward(queries[:, :, below], keys[:, :, own], values[:, :, own], False, scale)
            merge(out, sums, below, *part)
    for one in past:
        rows = slice(one.start, one.stop)
        before = [_repeated(side.to(dtype), queries) for side in (one.keys, one.values)]
        merge(out, sums, rows, *kernel.forward(queries[:, :, rows], before[0], before[1], False, scale))
    return out, sums


def attend_backward(
    grad: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    out: Tensor,
    sums: Tensor,
    nodes: Sequence[Node],
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by queries [K, H / K, N, D], keys and values [K, N, D], in the dtype of the kernel."""
    dtype = kernel_dtype(queries)
    kernel = kernel_of(queries.device.type, dtype)
    grad, queries, out = grad.to(dtype), queries.to(dtype), out.to(dtype)
    found = torch.zeros_like(queries), torch.zeros_like(keys, dtype=dtype), torch.zeros_like(values, dtype=dtype)
    keys, values = _repeated(keys.to(dtype), queries), _repeated(values.to(dtype), queries)
    for causal in (True, False):
        for node in nodes:
            own = slice(node.start, node.stop)
            rows = own if causal else slice(node.stop, node.end)
            if rows.start == rows.stop:
                continue
            inputs = queries[:, :, rows], keys[:, :, own], values[:, :, own]
            parts = kernel.backward(grad[:, :, rows], *inputs, (out[:, :, rows], sums[:, :, rows]), causal, scale)
            found[0][:, :, rows] += parts[0]
            for total, one in zip(found[1:], parts[1:], strict=True):
                total[:, own] += one.sum(1)
    return found


def _repeated(tensor: Tensor, queries: Tensor) -> Tensor:
    """Keys or values [K, N, D] as [K, H / K, N, D], by a stride of 0."""
    return tensor.unsqueeze(1).expand(-1, queries.shape[1], -1, -1)


def _grouped(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[K, H / K, N, D] and [K, N, D] views: the heads that share keys side by side."""
    return query[0].unflatten(0, (key.shape[1], -1)), key[0], value[0]


def merge(out: Tensor, sums: Tensor, rows: slice, other: Tensor, others: Tensor) -> None:
    """Merge a part into `out` and `sums` at some rows, in place."""
    mine = sums[:, :, rows]
    both = torch.logaddexp(mine, others)
    weights, weighed = (mine - both).exp_().unsqueeze(-1), (others - both).exp_().unsqueeze(-1)
    out[:, :, rows].mul_(weights).addcmul_(other, weighed)
    sums[:, :, rows] = both


def shared_prefix_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    forest: Forest | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """transformers' own attention, but for calls that say of which `forest` the tokens are."""
    if forest is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    if more := [name for name in BEYOND if kwargs.get(name) is not None]:
        raise ValueError(f"{more[0]} is more than plain attention")
    if kwargs.get("dropout"):
        raise ValueError(f"a dropout of {kwargs['dropout']} in the attention is not done over a forest")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return _ForestAttention.apply(query, key, value, forest.nodes, scale), None


AttentionInterface.register(NAME, shared_prefix_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


def through(module: nn.Module, forest: Forest) -> Any:
    """What a model, or its backbone, for which `install` said yes makes of a forest's tokens: one row of them."""
    device = next(module.parameters()).device
    inputs = {"input_ids": forest.ids.to(device)[None], "position_ids": forest.positions.to(device)[None]}
    # A mask of four dimensions is taken as it is: none is built, which would have [N, N].
    mask = torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=device)
    return module(**inputs, attention_mask=mask, forest=forest, use_cache=False)


def states(backbone: nn.Module, forest: Forest) -> Tensor:
    """Last hidden states [N, d] of a forest's tokens."""
    return through(backbone, forest).last_hidden_state[0]


def _full_attention(model: Any) -> bool:
    """Does every layer attend to all that came before, through transformers' attention interface?"""
    config = model.config.get_text_config()
    cache = DynamicCache(config=config)
    return (
        bool(cache.layers)
        and all(type(layer) is DynamicLayer for layer in cache.layers)
        and not getattr(config, "alibi", False)
        and getattr(model, "_supports_attention_backend", False)
    )


def install(model: Any) -> bool:
    """Have a model attend through `shared_prefix_attention`; whether it computes with it what it computes without.

    That is found by trying: the same tokens as two sequences of a forest and one after the other. A family that does
    more in its attention than this does (windows, soft-capping, ALiBi), or hides its backbone, keeps the plain path.
    """
    before = model.config._attn_implementation
    if before not in ("sdpa", "eager") or not _full_attention(model) or model.base_model is model:
        return _refused(model, "its attention is not plain")
    test = trial(model)
    with torch.no_grad():
        plain = model.base_model(**test.inputs, use_cache=False).last_hidden_state
        model.set_attn_implementation(NAME)
        try:
            off = test.error(states(model.base_model, test.forest), plain)
            reason = f"it does more in its attention, states would be off by {off:.1g}"
            if not plain.isfinite().all():
                reason = "its states are not finite, so nothing can be tried"
        except torch.OutOfMemoryError:
            raise
        except (TypeError, ValueError, RuntimeError, IndexError) as error:
            off, reason = math.inf, str(error)
    if off < TOLERANCE[model.dtype]:
        return True
    model.set_attn_implementation(before)
    return _refused(model, reason)


def _refused(model: Any, reason: str) -> Literal[False]:
    log.warning("%s computes each prompt for every completion, which is slower: %s", type(model).__name__, reason)
    return False


@dataclass(frozen=True, slots=True)
class Trial:
    """Two sequences, as a forest and one after the other."""

    forest: Forest
    inputs: dict[str, Tensor]
    """For a model: ids, mask and positions, [2, 12]."""

    def error(self, packed: Tensor, plain: Tensor) -> float:
        """How far values [N, …] of the forest's tokens are from those of the sequences, [2, 12, …]."""
        return max(distance(packed[place], one) for place, one in zip(self.forest.places, plain, strict=True))


def trial(model: Any) -> Trial:
    """Two sequences that part after six tokens, whose positions jump by some hundreds, and then to the last there are.

    Tokens are from all over the vocabulary, for many models are chaotic on the special ones that it begins with.
    """
    config = model.config.get_text_config()
    size = int(config.vocab_size)
    sequences = [[(1009 * place + 7 * size // 16) % size for place in range(first, first + 12)] for first in (0, 3)]
    sequences[1][:6] = sequences[0][:6]
    last = (longest(config) or JUMP + 12) - 12
    forest = pack(sequences, min_shared=4)
    forest = replace(forest, positions=_jumped(forest.positions, last))
    ids = torch.tensor(sequences, device=model.device)
    positions = _jumped(torch.arange(12, device=model.device), last).expand(2, -1)
    return Trial(forest, {"input_ids": ids, "attention_mask": torch.ones_like(ids), "position_ids": positions})


def _jumped(positions: Tensor, last: int) -> Tensor:
    """Positions 0 … 11 of the probe, the last three of them jumping by `last`."""
    far = torch.where(positions < 9, min(JUMP, last), last)
    return torch.where(positions < 3, positions, positions + far.clamp_min(0))


def longest(config: Any) -> int | None:
    """Positions that a model is exact for, in tokens; None when it names no limit.

    Some choose their angles by the longest sequence of a call: those are used up to where the angles first change, for
    beyond it what is made of a sequence would depend on its neighbours.
    """
    limit = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        limit = rope.get("original_max_position_embeddings") or limit
    return int(limit) if limit else None


def distance(one: Tensor, other: Tensor) -> float:
    """Relative to the length of `other`."""
    return float((one.float() - other.float()).norm() / other.float().norm())


def shares_prefix(model: Any) -> bool:
    """Whether `install` said yes to this model, or to the one inside its adapter."""
    return getattr(model.config, "_attn_implementation", None) == NAME


def unwrapped(model: Any) -> Any:
    """The model inside peft's, where there is one."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model
