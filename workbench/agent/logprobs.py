"""Log-probabilities of sampled completions, with gradient, holding few logits at a time.

Where the logits are head(backbone), they are made for some tokens at once and [batch, length, vocab] never exists.
Where a model does more to them (Gemma-2, Granite, Cohere), it makes all of a row's at once, and the rows are bounded.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from workbench.agent import attention
from workbench.agent.llama import body_of
from workbench.agent.prefix import pack

log = logging.getLogger(__name__)

Row = tuple[Sequence[int], Sequence[int]]
"""(prompt ids, completion ids) of one sample."""

CHUNK_ELEMENTS = 2**24
"""Logits that one chunk holds (64 MB in fp32): tokens of a chunk = this / vocabulary size."""

WHOLE_ELEMENTS = 2**27
"""Logits that one forward of a model without a plain head makes (512 MB in fp32); one row at least, however long."""

_plain_heads: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
"""Model → is its output exactly head(backbone)? A memory of `split_head`, asked once per model."""


def completion_logprobs(
    model: Any,
    rows: Sequence[Row],
    temperature: float,
    *,
    pad_id: int = 0,
    entropy: bool = False,
    chunk_tokens: int | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """log_softmax(logits / temperature) of each completion token, given its prompt and the tokens before it.

    Rows are right-padded with `pad_id` to the longest; which id that is changes nothing, since masks come from
    lengths. A causal model never looks to the right, so the filler needs no attention mask, and the fast causal
    kernels apply. Only completion positions go through the output head, `chunk_tokens` at a time (default: 2^24 logits
    a chunk); a chunk's logits are dropped after use and recomputed in the backward pass. A model without a plain head
    runs on as many rows at once as `WHOLE_ELEMENTS` allows, and again in the backward pass where that is not all of
    them. The caller sees to it that dropout is off (`load_policy` does).

    Returns (logprobs, mask, entropy): [R, C] fp32 in nats, with gradient where the model has one, 0 where masked;
    [R, C] bool, True on completion tokens; [R, C] fp32 without gradient, the entropy of softmax(logits / temperature)
    at each position, or None unless asked for. C is the longest completion. Raises `ValueError` for an empty prompt.
    """
    if any(len(prompt) == 0 for prompt, _ in rows):
        raise ValueError("a row has an empty prompt: nothing predicts its first token")
    device = next(model.parameters()).device
    lengths = [len(completion) for _, completion in rows]
    mask = torch.arange(max(lengths, default=0)) < torch.tensor(lengths, dtype=torch.long).unsqueeze(1)
    mask = mask.to(device)
    if not any(lengths):
        zeros = torch.zeros(mask.shape, dtype=torch.float32, device=device)
        return zeros, mask, zeros.clone() if entropy else None
    size = len(rows) if split_head(model) is not None else _rows_at_once(model, rows)
    parts = [rows[start : start + size] for start in range(0, len(rows), size)]
    recompute = len(parts) > 1 and torch.is_grad_enabled()
    found = []
    for part in parts:
        arguments = (model, part, temperature, pad_id, entropy, chunk_tokens)
        if recompute:
            found.append(checkpoint(_forward, *arguments, use_reentrant=False, preserve_rng_state=False))
        else:
            found.append(_forward(*arguments))
    values, entropies = (torch.cat(results) for results in zip(*found, strict=True))
    empty = torch.zeros(mask.shape, dtype=torch.float32, device=device)
    scattered = empty.masked_scatter(mask, values)
    return scattered, mask, empty.masked_scatter(mask, entropies) if entropy else None


def _padded(rows: Sequence[Row], pad_id: int) -> Tensor:
    """[R, longest prompt + completion] ids, int64, right-padded."""
    width = max(len(prompt) + len(completion) for prompt, completion in rows)
    return torch.tensor([[*p, *c, *[pad_id] * (width - len(p) - len(c))] for p, c in rows])


def _rows_at_once(model: Any, rows: Sequence[Row]) -> int:
    """Rows whose logits, from the first completion token of any to the end of the longest, are `WHOLE_ELEMENTS`."""
    positions = max(len(p) + len(c) for p, c in rows) - min(len(p) - 1 for p, _ in rows)
    return max(1, WHOLE_ELEMENTS // (positions * int(model.config.get_text_config().vocab_size)))


def _forward(
    model: Any, rows: Sequence[Row], temperature: float, pad_id: int, entropy: bool, chunk_tokens: int | None
) -> tuple[Tensor, Tensor]:
    """Log-probabilities [N] of the completion tokens of `rows`, and entropies [N] (empty unless asked for)."""
    device = next(model.parameters()).device
    row_of = torch.tensor([r for r, (_, c) in enumerate(rows) for _ in c], dtype=torch.long, device=device)
    position = torch.tensor([len(p) - 1 + i for p, c in rows for i in range(len(c))], dtype=torch.long, device=device)
    targets = torch.tensor([token for _, completion in rows for token in completion], dtype=torch.long, device=device)
    if not len(targets):
        nothing = torch.zeros(0, dtype=torch.float32, device=device)
        return nothing, nothing
    parts = split_head(model)
    if parts is not None and attention.shares_prefix(model):
        states = _shared_states(model, parts[0], rows)
        return _selected(parts[1], states, targets, temperature, entropy, chunk_tokens)
    head, states = _states(model, _padded(rows, pad_id).to(device), row_of, position)
    return _selected(head, states, targets, temperature, entropy, chunk_tokens)


def _shared_states(model: Any, backbone: nn.Module, rows: Sequence[Row]) -> Tensor:
    """The states [N, d] before each completion token, every distinct prefix of the rows computed once."""
    taught = [(prompt, completion) for prompt, completion in rows if len(completion)]
    forest = pack([[*prompt, *completion[:-1]] for prompt, completion in taught])
    wanted = torch.cat([place[len(prompt) - 1 :] for place, (prompt, _) in zip(forest.places, taught, strict=True)])
    body = body_of(model)
    found = attention.states(backbone, forest) if body is None else body.states(forest)
    return found[wanted.to(found.device)]


def _states(model: Any, ids: Tensor, row_of: Tensor, position: Tensor) -> tuple[nn.Module | None, Tensor]:
    """The output head and the states [N, d] before it at the wanted positions; (None, logits [N, V]) without one."""
    parts = split_head(model)
    if parts is None:
        first = int(position.min())
        logits = model(input_ids=ids, use_cache=False, logits_to_keep=ids.shape[1] - first).logits
        return None, logits[row_of, position - first]
    backbone, head = parts
    hidden = backbone(input_ids=ids, use_cache=False).last_hidden_state
    return head, hidden[row_of, position]


def _selected(
    head: nn.Module | None,
    states: Tensor,
    targets: Tensor,
    temperature: float,
    entropy: bool,
    chunk_tokens: int | None,
) -> tuple[Tensor, Tensor]:
    """Log-probabilities [N] of `targets`, and entropies [N] (empty unless asked for), chunk by chunk."""
    if chunk_tokens is None:
        vocabulary = states.shape[-1] if head is None else int(getattr(head, "out_features", 2**17))
        chunk_tokens = max(1, CHUNK_ELEMENTS // vocabulary)
    if isinstance(head, nn.Linear) and not any(parameter.requires_grad for parameter in head.parameters()):
        return _FrozenHead.apply(states, head.weight, head.bias, targets, temperature, entropy, chunk_tokens)
    values, entropies = [], []
    recompute = torch.is_grad_enabled() and states.requires_grad
    for part, wanted in zip(states.split(chunk_tokens), targets.split(chunk_tokens), strict=True):
        arguments = (head, part, wanted, temperature, entropy)
        if recompute:
            value, spread = checkpoint(_chunk, *arguments, use_reentrant=False, preserve_rng_state=False)
        else:
            value, spread = _chunk(*arguments)
        values.append(value)
        entropies.append(spread)
    return torch.cat(values), torch.cat(entropies)


class _FrozenHead(torch.autograd.Function):
    """`_chunk` by `_chunk`, for a head that is not trained: then the gradient of each log-probability by its state,
    (w_target - Σ p_v·w_v) / temperature, can be computed while the logits are there, and nothing twice."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        entropy: bool,
        chunk_tokens: int,
    ) -> tuple[Tensor, Tensor]:
        values, entropies, slopes = [], [], []
        for part, wanted in zip(states.split(chunk_tokens), targets.split(chunk_tokens), strict=True):
            logits = tempered(nn.functional.linear(part, weight, bias), temperature)
            top = logits.amax(-1, keepdim=True)
            shares = (logits - top).exp_()  # of softmax, but for their sum
            whole = shares.sum(-1)
            total = top.squeeze(-1) + whole.log()
            values.append(logits.gather(-1, wanted.unsqueeze(-1)).squeeze(-1) - total)
            if entropy:
                spread = total - torch.linalg.vecdot(shares, logits) / whole
                entropies.append(spread if spread.isfinite().all() else _spread(logits, total))
            if ctx.needs_input_grad[0]:
                mean = (shares.to(weight.dtype) @ weight) / whole.unsqueeze(-1)
                slopes.append(((weight[wanted] - mean) / temperature).to(weight.dtype))
        ctx.save_for_backward(*([torch.cat(slopes)] if slopes else []))
        found = torch.cat(values), torch.cat(entropies) if entropy else values[0].new_zeros(0)
        ctx.mark_non_differentiable(found[1])
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        (slopes,) = ctx.saved_tensors
        return ((grad.unsqueeze(-1) * slopes).to(slopes.dtype), *[None] * 6)


def _spread(logits: Tensor, total: Tensor) -> Tensor:
    """Entropy [N] of softmax(logits), given their log-sum-exp."""
    probabilities = torch.exp(logits - total.unsqueeze(-1))
    # 0 · log 0 = 0: a token of probability 0 may have logit -inf.
    return total - (probabilities * logits.masked_fill(probabilities == 0, 0)).sum(-1)


def _chunk(
    head: nn.Module | None, states: Tensor, targets: Tensor, temperature: float, entropy: bool
) -> tuple[Tensor, Tensor]:
    logits = tempered(states if head is None else head(states), temperature)
    total = torch.logsumexp(logits, dim=-1)
    values = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1) - total
    if not entropy:
        return values, values.new_zeros(0)
    with torch.no_grad():
        return values, _spread(logits, total)


def tempered(logits: Tensor, temperature: float) -> Tensor:
    """Logits in fp32 divided by the temperature: the one place where it is applied, for sampler and trainer."""
    logits = logits.float()
    return logits if temperature == 1 else logits / temperature


def split_head(model: Any) -> tuple[nn.Module, nn.Module] | None:
    """(backbone, output head) of a causal LM such that its logits are head(backbone); peft wrappers are seen through.

    None for families that do more to their logits (scaling, soft-capping) or hide their head: then the whole model
    has to run. Which it is is found by running both ways on a few tokens, bit for bit, once per model.
    """
    inner = attention.unwrapped(model)
    backbone, head = getattr(inner, "base_model", inner), inner.get_output_embeddings()
    if head is None or backbone is inner:
        return None
    if model not in _plain_heads:
        _plain_heads[model] = _is_plain(inner, backbone, head)
        if not _plain_heads[model]:
            log.info(
                "%s changes its logits after the head: log-probabilities run the whole model", type(inner).__name__
            )
    return (backbone, head) if _plain_heads[model] else None


@torch.no_grad()
def _is_plain(inner: Any, backbone: nn.Module, head: nn.Module) -> bool:
    ids = torch.arange(
        min(8, inner.config.get_text_config().vocab_size), device=next(inner.parameters()).device
    ).unsqueeze(0)
    modes = {module: module.training for module in inner.modules()}
    inner.eval()
    try:
        whole = inner(input_ids=ids, use_cache=False).logits
        return torch.equal(whole, head(backbone(input_ids=ids, use_cache=False).last_hidden_state))
    finally:
        for module, training in modes.items():
            module.training = training
