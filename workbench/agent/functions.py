"""Pieces of a layer with their gradients, in few and large calls that keep little for the backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from workbench.agent.attention import attend, attend_backward
from workbench.agent.kernels import linear
from workbench.agent.prefix import Node, Past


class Together(torch.autograd.Function):
    """`joined` [Σ out, in] as made of weights [out, in], which are views of its rows: no copy, here or for later."""

    @staticmethod
    def forward(ctx: Any, joined: Tensor, *weights: Tensor) -> Tensor:
        ctx.sizes = [len(weight) for weight in weights]
        return joined.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        pieces = grad.split(ctx.sizes)
        wanted = ctx.needs_input_grad[1:]
        return None, *(piece if asked else None for piece, asked in zip(pieces, wanted, strict=True))


class Product(torch.autograd.Function):
    """inputs·(weight + up·down)ᵀ + bias, without making that sum: [N, in] → [N, out].

    weight [out, in], bias [out], down [r, in] and up [out, r], all in the dtype of the inputs.
    """

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, down: Tensor | None, up: Tensor | None
    ) -> Tensor:
        out = linear(inputs, weight, bias)
        low = None
        if down is not None and up is not None:
            low = linear(inputs, down)
            out.addmm_(low, up.T)
        ctx.save_for_backward(inputs, weight, down, up, low)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight, down, up, low = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        below = linear(grad, up.T) if up is not None else None
        to_inputs = linear(grad, weight.T) if wanted[0] else None
        if to_inputs is not None and below is not None:
            to_inputs.addmm_(below, down)
        return (
            to_inputs,
            grad.T @ inputs if wanted[1] else None,
            grad.sum(0) if wanted[2] else None,
            below.T @ inputs if wanted[3] and below is not None else None,
            grad.T @ low if wanted[4] else None,
        )


class Norm(torch.autograd.Function):
    """RMSNorm of [N, …, d] over the last dimension, keeping its input and one number per row."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = torch.promote_types(inputs.dtype, torch.float32)
        rate = torch.linalg.vector_norm(inputs, dim=-1, keepdim=True, dtype=wide)
        rate = rate.square_().div_(inputs.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(inputs, weight, rate)
        return (inputs * rate).to(inputs.dtype).mul_(weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight, rate = ctx.saved_tensors
        unit = inputs * rate
        to_weight = (grad * unit).flatten(0, -2).sum(0).to(weight.dtype) if ctx.needs_input_grad[1] else None
        scaled = (grad * weight).to(rate.dtype)
        along = torch.linalg.vecdot(scaled, unit).unsqueeze(-1).div_(inputs.shape[-1])
        return scaled.sub_(unit.mul_(along)).mul_(rate).to(inputs.dtype), to_weight, None


class Gate(torch.autograd.Function):
    """silu(gate)·up of both side by side: [N, 2·m] → [N, m]."""

    @staticmethod
    def forward(ctx: Any, both: Tensor) -> Tensor:
        ctx.save_for_backward(both)
        gate, up = both.chunk(2, -1)
        return functional.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (both,) = ctx.saved_tensors
        gate, up = both.chunk(2, -1)
        out = torch.empty_like(both)
        to_gate, to_up = out.chunk(2, -1)
        torch.ops.aten.silu_backward.grad_input(grad * up, gate, grad_input=to_gate)
        torch.mul(functional.silu(gate), grad, out=to_up)
        return out


class Rotate(torch.autograd.Function):
    """The first `count` heads of [N, H, D] turned by angles [N, 1, D], the others as they are."""

    @staticmethod
    def forward(ctx: Any, heads: Tensor, cos: Tensor, sin: Tensor, count: int) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.count = count
        return turn(heads, cos, sin, count)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return turn(grad, cos, -sin, ctx.count), None, None, None


def turn(heads: Tensor, cos: Tensor, sin: Tensor, count: int) -> Tensor:
    """A copy of heads [N, H, D] with the first `count` turned; `sin` is negative in its first half (`signed`)."""
    out = torch.empty_like(heads)
    out[:, count:] = heads[:, count:]
    turned = heads[:, :count]
    torch.mul(turned, cos, out=out[:, :count])
    out[:, :count].addcmul_(turned.roll(turned.shape[-1] // 2, -1), sin)
    return out


def signed(sin: Tensor) -> Tensor:
    """transformers turns (a, b) into (a·cos - b·sin, b·cos + a·sin): the sign goes to the angles, once."""
    return torch.cat([-sin[..., : sin.shape[-1] // 2], sin[..., sin.shape[-1] // 2 :]], -1)


class Attend(torch.autograd.Function):
    """Turned heads [N, H + 2·K, D], queries first, then keys, then values → [N, H·D]."""

    @staticmethod
    def forward(
        ctx: Any, heads: Tensor, count: int, nodes: Sequence[Node], past: Sequence[Past], scale: float
    ) -> Tensor:
        if past and ctx.needs_input_grad[0]:
            raise ValueError("keys and values of a past have no gradient: they are for sampling")
        shared = (heads.shape[1] - count) // 2
        out, sums = attend(*_views(heads, count, shared), nodes, past, scale)
        out = out.permute(2, 0, 1, 3).reshape(len(heads), -1).to(heads.dtype)
        ctx.save_for_backward(heads, out, sums)
        ctx.count, ctx.shared, ctx.nodes, ctx.scale = count, shared, nodes, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        heads, out, sums = ctx.saved_tensors
        whole, above = (
            tensor.view(len(heads), ctx.shared, -1, heads.shape[-1]).permute(1, 2, 0, 3) for tensor in (out, grad)
        )
        found = attend_backward(above, *_views(heads, ctx.count, ctx.shared), whole, sums, ctx.nodes, ctx.scale)
        to_heads = torch.empty_like(heads)
        for view, one in zip(_views(to_heads, ctx.count, ctx.shared), found, strict=True):
            view.copy_(one)
        return to_heads, None, None, None, None


def _views(heads: Tensor, count: int, shared: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [K, H / K, N, D], keys and values [K, N, D] of heads [N, H + 2·K, D]."""
    queries, keys, values = heads.split([count, shared, shared], 1)
    return queries.unflatten(1, (shared, -1)).permute(1, 2, 0, 3), keys.transpose(0, 1), values.transpose(0, 1)


def norm(module: Any, inputs: Tensor) -> Tensor:
    """What an RMSNorm of transformers makes of inputs [N, …, d]."""
    if torch.is_grad_enabled():
        return Norm.apply(inputs, module.weight, module.variance_epsilon)
    if inputs.dtype == torch.float32:
        return functional.rms_norm(inputs, inputs.shape[-1:], module.weight, module.variance_epsilon)
    # Rounded before the weight, as transformers does and as above: what is sampled is scored alike in training.
    return functional.rms_norm(inputs, inputs.shape[-1:], None, module.variance_epsilon).mul_(module.weight)
