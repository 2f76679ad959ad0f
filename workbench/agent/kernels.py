"""Attention of some queries to some keys with its log-sum-exp, and its gradients given what came out of the whole.

And products with weights. Which kernel computes either is found once per device and dtype, by trying it against the
plain computation.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import cache
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

log = logging.getLogger(__name__)

ROWS = 16
"""For how many rows weights are laid out in decoding; others are computed with the same layout."""
SCORES = 2**24
"""Scores held at once where there is no kernel that returns its log-sum-exp (64 MB in fp32)."""


Whole = tuple[Tensor, Tensor]
"""Output [B, H, L, D] and log-sum-exp [B, H, L] over all the keys that the queries see."""


class Kernel(Protocol):
    """Queries are [B, H, L, D], keys and values [B, H, S, D], log-sum-exps [B, H, L] in fp32 at least."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
        """softmax(q·kᵀ·scale)·v and the log-sum-exp of the scores."""

    def backward(
        self, grad: Tensor, query: Tensor, key: Tensor, value: Tensor, whole: Whole, causal: bool, scale: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients by query, key and value, given the whole's output, its gradient and its log-sum-exp."""


class Flash:
    """torch's kernel for CPUs."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        out, lse = kernel(query, key, value, 0.0, causal, scale=scale)
        return out, lse

    def backward(
        self, grad: Tensor, query: Tensor, key: Tensor, value: Tensor, whole: Whole, causal: bool, scale: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        found = kernel(grad, query, key, value, *whole, 0.0, causal, scale=scale)
        return found[0], found[1], found[2]


class Efficient:
    """torch's memory-efficient kernel for CUDA; it wants log-sum-exps padded to a multiple of 32."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
        kernel = torch.ops.aten._scaled_dot_product_efficient_attention
        out, lse, _, _ = kernel(query, key, value, None, True, 0.0, causal, scale=scale)
        return out, lse[..., : query.shape[2]]

    def backward(
        self, grad: Tensor, query: Tensor, key: Tensor, value: Tensor, whole: Whole, causal: bool, scale: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        out, lse = whole
        lse = functional.pad(lse, (0, -lse.shape[-1] % 32), value=float("inf"))
        state = torch.zeros((), dtype=torch.int64, device=query.device)  # of a dropout of 0
        kernel = torch.ops.aten._scaled_dot_product_efficient_attention_backward
        masks = [True, True, True, False]
        found = kernel(grad, query, key, value, None, out, lse, state, state, 0.0, masks, causal, scale=scale)
        return found[0], found[1], found[2]


class Plain:
    """Products and softmax in fp32 at least, some queries at a time."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
        outs, sums = [], []
        for _, scores in _scores(query, key, causal, scale):
            total = torch.logsumexp(scores, -1)
            outs.append((scores - total.unsqueeze(-1)).exp_().to(value.dtype) @ value)
            sums.append(total)
        return torch.cat(outs, 2), torch.cat(sums, 2)

    def backward(
        self, grad: Tensor, query: Tensor, key: Tensor, value: Tensor, whole: Whole, causal: bool, scale: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        dtype, (out, lse) = query.dtype, whole
        grad, query, key, value, out = (tensor.to(lse.dtype) for tensor in (grad, query, key, value, out))
        weight = (out * grad).sum(-1, keepdim=True)
        queries, keys, values = [], torch.zeros_like(key), torch.zeros_like(value)
        for rows, scores in _scores(query, key, causal, scale):
            shares = (scores - lse[:, :, rows].unsqueeze(-1)).exp_()
            above = grad[:, :, rows]
            inner = shares * (above @ value.transpose(-1, -2) - weight[:, :, rows]) * scale
            queries.append(inner @ key)
            keys += inner.transpose(-1, -2) @ query[:, :, rows]
            values += shares.transpose(-1, -2) @ above
        return torch.cat(queries, 2).to(dtype), keys.to(dtype), values.to(dtype)


PLAIN: Kernel = Plain()
FAST: dict[str, Kernel] = {"cpu": Flash(), "cuda": Efficient()}


def _scores(query: Tensor, key: Tensor, causal: bool, scale: float) -> Iterator[tuple[slice, Tensor]]:
    """(rows, scores in fp32 at least) of some queries at a time."""
    length, keys = query.shape[2], key.shape[2]
    wide = torch.promote_types(query.dtype, torch.float32)
    step = max(1, SCORES // (query.shape[0] * query.shape[1] * keys))
    for start in range(0, length, step):
        rows = slice(start, min(start + step, length))
        scores = (query[:, :, rows].to(wide) @ key.to(wide).transpose(-1, -2)) * scale
        if causal:
            ahead = torch.arange(keys, device=query.device) > torch.arange(length, device=query.device)[rows, None]
            scores = scores.masked_fill(ahead, float("-inf"))
        yield rows, scores


@cache
def kernel_of(device: str, dtype: torch.dtype) -> Kernel:
    """The fast kernel of a kind of device where there is one that agrees with the plain computation, else that."""
    if (fast := FAST.get(device)) is None:
        return PLAIN
    try:
        if agrees(fast, torch.device(device), dtype):
            return fast
        reason = "it computes something else"
    except (AttributeError, RuntimeError, TypeError) as error:
        reason = str(error).partition("\n")[0]
    log.warning(
        "attention on %s in %s is slow: torch's kernel cannot be used here, %s",
        device,
        str(dtype).removeprefix("torch."),
        reason,
    )
    return PLAIN


def agrees(kernel: Kernel, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether outputs, log-sum-exps and gradients are those of `PLAIN`: causal and not, with keys that heads share."""
    generator = torch.Generator().manual_seed(0)
    limit = {torch.bfloat16: 0.05, torch.float16: 0.05, torch.float64: 1e-9}.get(dtype, 1e-4)
    for causal, keys in ((True, 37), (False, 37), (False, 91)):
        # As in use: views of larger tensors, from a row that no kernel would have chosen.
        query, grad = (torch.randn(1, 4, 40, 64, generator=generator).to(device, dtype)[:, :, 3:] for _ in range(2))
        key, value = (torch.randn(1, 1, keys + 5, 64, generator=generator).to(device, dtype)[:, :, 5:] for _ in "kv")
        key, value = (side.expand(-1, 4, -1, -1) for side in (key, value))
        out, lse = PLAIN.forward(query, key, value, causal, 0.125)
        wanted = out, lse, *PLAIN.backward(grad, query, key, value, (out, lse), causal, 0.125)
        found = (
            *kernel.forward(query, key, value, causal, 0.125),
            *kernel.backward(grad, query, key, value, (out, lse), causal, 0.125),
        )
        for one, other in zip(found, wanted, strict=True):
            if not (one.float() - other.float()).abs().max() < limit * (1 + other.float().abs().max()):
                return False
    return True


def kernel_dtype(tensor: Tensor) -> torch.dtype:
    """What attention is computed in: CPUs without AMX multiply bf16 no faster than fp32 there, and round more."""
    if tensor.device.type == "cpu" and tensor.dtype in (torch.bfloat16, torch.float16) and not _has_amx():
        return torch.float32
    return tensor.dtype


@cache
def widens(device: str, dtype: torch.dtype) -> bool:
    """Whether a batched product of this dtype gives what it adds up, in fp32, before it is rounded."""
    one = torch.tensor([1.0, 2**-12], device=device, dtype=dtype).view(1, 1, 2)
    try:
        return bool(torch.bmm(one, torch.ones_like(one).transpose(1, 2), out_dtype=torch.float32) == 1 + 2**-12)
    except (RuntimeError, TypeError):
        return False


@cache
def _has_amx() -> bool:
    return torch.cpu._is_amx_tile_supported()


def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """inputs [N, in] · weightᵀ [in, out] + bias, without gradient: by oneDNN in fp32 too, where torch takes MKL."""
    if inputs.device.type == "cpu" and inputs.dtype == torch.float32 and inputs.dtype in onednn_dtypes():
        return torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")
    return functional.linear(inputs, weight, bias)


@cache
def onednn_dtypes() -> frozenset[torch.dtype]:
    """The dtypes for which the operators that torch.compile packs weights with work here, and give the same."""
    generator, found = torch.Generator().manual_seed(0), set()
    for dtype, error in ((torch.float32, 1e-4), (torch.bfloat16, 1e-1)):
        inputs, weight = (torch.randn(size, 40, generator=generator).to(dtype) for size in (3, 24))
        try:
            layout = torch.ops.mkldnn._reorder_linear_weight(weight.clone(), ROWS)
            products = [
                torch.ops.mkldnn._linear_pointwise(inputs, one, None, "none", [], "")
                for one in (layout, weight, weight.T.contiguous().T)
            ]
        except (AttributeError, RuntimeError) as error:
            log.info("weights in %s are laid out at every product: %s", dtype, str(error).partition("\n")[0])
            continue
        wanted = inputs.float() @ weight.float().T
        if all((product.float() - wanted).abs().max() < error for product in products):
            found.add(dtype)
    return frozenset(found)
