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
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache
from transformers.cache_utils import DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from workbench.agent.prefix import Forest, Node, pack

log = logging.getLogger(__name__)

NAME = "shared_prefix"

BEYOND = ("softcap", "sliding_window", "s_aux", "position_bias")
"""What families ask of their attention that this one does not do."""
SCORES = 2**24
"""Scores held at once where there is no kernel that returns its log-sum-exp (64 MB in fp32)."""


TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 1e-1, torch.float16: 2e-2, torch.float64: 1e-6}
"""Of the probe that decides whether a model can share prefixes."""


def has_kernel(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu"


def part(
    query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """softmax(q·kᵀ·scale + mask)·v and the log-sum-exp of the scores: [B, H, L, D] and [B, H, L] fp32."""
    if has_kernel(query):
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        return kernel(query, key, value, 0.0, causal, attn_mask=mask, scale=scale)
    outs, sums = [], []
    for _, scores in _scores(query, key, causal, scale, mask):
        total = torch.logsumexp(scores, -1)
        outs.append((scores - total.unsqueeze(-1)).exp_().to(value.dtype) @ value)
        sums.append(total)
    return torch.cat(outs, 2), torch.cat(sums, 2)


def part_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of one part, given output, its gradient and log-sum-exp of the whole."""
    if has_kernel(query):
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, query, key, value, out, lse, 0.0, causal, scale=scale
        )
    weight = (out.float() * grad.float()).sum(-1, keepdim=True)
    queries = []
    keys, values = torch.zeros_like(key, dtype=torch.float32), torch.zeros_like(value, dtype=torch.float32)
    for rows, scores in _scores(query, key, causal, scale):
        shares = (scores - lse[:, :, rows].unsqueeze(-1)).exp_()
        above = grad[:, :, rows].float()
        inner = shares * (above @ value.float().transpose(-1, -2) - weight[:, :, rows]) * scale
        queries.append(inner @ key.float())
        keys += inner.transpose(-1, -2) @ query[:, :, rows].float()
        values += shares.transpose(-1, -2) @ above
    return torch.cat(queries, 2).to(query.dtype), keys.to(key.dtype), values.to(value.dtype)


def _scores(
    query: Tensor, key: Tensor, causal: bool, scale: float, mask: Tensor | None = None
) -> Iterator[tuple[slice, Tensor]]:
    """(rows, scores in fp32) of some queries at a time."""
    length, keys = query.shape[2], key.shape[2]
    step = max(1, SCORES // (query.shape[0] * query.shape[1] * keys))
    for start in range(0, length, step):
        rows = slice(start, min(start + step, length))
        scores = (query[:, :, rows].float() @ key.float().transpose(-1, -2)) * scale
        if mask is not None:
            scores = scores + mask
        if causal:
            ahead = torch.arange(keys, device=query.device) > torch.arange(length, device=query.device)[rows, None]
            scores = scores.masked_fill(ahead, float("-inf"))
        yield rows, scores


class _ForestAttention(torch.autograd.Function):
    """query [1, H, N, D], key and value [1, K, N, D] → [1, N, H, D]."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, nodes: Sequence[Node], scale: float) -> Tensor:
        heads, length, width = query.shape[1:]
        shared = key.shape[1]
        out = query.new_empty(length, shared, heads // shared, width)
        exact = torch.promote_types(query.dtype, torch.float32)
        sums = query.new_empty(shared, heads // shared, length, dtype=exact)
        whole = out.permute(1, 2, 0, 3)
        queries, keys, values = _grouped(query, key, value)
        for node in nodes:
            own = slice(node.start, node.stop)
            whole[:, :, own], sums[:, :, own] = part(
                queries[:, :, own], keys[:, :, own], values[:, :, own], True, scale
            )
        for node in nodes:
            if node.end > node.stop:
                own, below = slice(node.start, node.stop), slice(node.stop, node.end)
                merge(whole, sums, below, *part(queries[:, :, below], keys[:, :, own], values[:, :, own], False, scale))
        ctx.save_for_backward(query, key, value, out, sums)
        ctx.nodes, ctx.scale = nodes, scale
        return out.view(1, length, heads, width)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, sums = ctx.saved_tensors
        queries, keys, values = _grouped(query, key, value)
        above, whole = grad.reshape(out.shape).permute(1, 2, 0, 3), out.permute(1, 2, 0, 3)
        grads = [torch.zeros_like(tensor) for tensor in (query, key, value)]
        to_query = grads[0].view(queries.shape)
        for causal in (True, False):
            for node in ctx.nodes:
                own = slice(node.start, node.stop)
                rows = own if causal else slice(node.stop, node.end)
                if rows.start == rows.stop:
                    continue
                inputs = (queries[:, :, rows], keys[:, :, own], values[:, :, own], whole[:, :, rows], sums[:, :, rows])
                found = part_backward(above[:, :, rows], *inputs, causal, ctx.scale)
                to_query[:, :, rows] += found[0]
                for total, one in zip(grads[1:], found[1:], strict=True):
                    total[0, :, own] += one.sum(1)
        return (*grads, None, None)


def _grouped(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[K, H / K, N, D] views: the heads that share keys side by side, keys and values repeated by a stride of 0."""
    shared = key.shape[1]
    queries = query[0].unflatten(0, (shared, -1))
    return queries, *(tensor[0].unsqueeze(1).expand(-1, queries.shape[1], -1, -1) for tensor in (key, value))


def merge(out: Tensor, sums: Tensor, rows: slice, other: Tensor, others: Tensor) -> None:
    """Merge a part into `out` and `sums` at some rows, in place."""
    mine = sums[:, :, rows]
    both = torch.logaddexp(mine, others)
    weights, weighed = (mine - both).exp_().unsqueeze(-1), (others - both).exp_().unsqueeze(-1)
    out[:, :, rows] = out[:, :, rows] * weights + other * weighed
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
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return _ForestAttention.apply(query, key, value, forest.nodes, scale), None


AttentionInterface.register(NAME, shared_prefix_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


def states(backbone: nn.Module, forest: Forest, cache: DynamicCache | None = None) -> Tensor:
    """Last hidden states [N, d] of a forest's tokens, by a backbone for which `install` said yes.

    cache: takes their keys and values, [1, K, N, D] per layer.
    """
    device = next(backbone.parameters()).device
    inputs = {"input_ids": forest.ids.to(device)[None], "position_ids": forest.positions.to(device)[None]}
    # A mask of four dimensions is taken as it is: none is built, which would have [N, N].
    mask = torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=device)
    return backbone(
        **inputs, attention_mask=mask, forest=forest, cache=cache, use_cache=cache is not None
    ).last_hidden_state[0]


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
        log.info("%s computes each prompt for every completion: its attention is not plain", type(model).__name__)
        return False
    size = min(7, int(model.config.get_text_config().vocab_size))
    sequences = [[token % size for token in range(first, first + 12)] for first in (0, 3)]
    sequences[1][:6] = sequences[0][:6]
    forest = pack(sequences, min_shared=4)
    device = next(model.parameters()).device
    with torch.no_grad():
        ids = torch.tensor(sequences, device=device)
        plain = model.base_model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).last_hidden_state
        model.set_attn_implementation(NAME)
        try:
            found = states(model.base_model, forest)
            error = max(_distance(found[place], one) for place, one in zip(forest.places, plain, strict=True))
        except (TypeError, ValueError, RuntimeError, IndexError) as reason:
            log.debug("%s: %s", type(model).__name__, reason)
            error = float("inf")
    if error < TOLERANCE[model.dtype]:
        return True
    model.set_attn_implementation(before)
    log.info("%s computes each prompt for every completion: it does more in its attention", type(model).__name__)
    return False


def _distance(one: Tensor, other: Tensor) -> float:
    """Relative to the length of `other`."""
    return float((one.float() - other.float()).norm() / other.float().norm())


def shares_prefix(model: Any) -> bool:
    """Whether `install` said yes to this model, or to the one inside its adapter."""
    return getattr(model.config, "_attn_implementation", None) == NAME
