"""Models of Llama's shape, read as weights: the layers of a forest of tokens in few and large calls.

The modules of transformers and peft compute each projection and each adapter on their own, and keep for the backward
pass what is cheap to compute again. Here projections that read the same input are one product with one adapter beside
it, and a layer keeps little more than its inputs, its heads and its gates. Parameters are those of the model, and so
are their gradients. Whether this computes what the model computes is found by trying (`body_of`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers.activations import SiLUActivation

from workbench.agent.attention import TOLERANCE, attend, attend_backward, distance, shares_prefix, trial, unwrapped
from workbench.agent.kernels import linear
from workbench.agent.prefix import Forest, Node, Past

log = logging.getLogger(__name__)

_bodies: WeakKeyDictionary[nn.Module, Body | None] = WeakKeyDictionary()
"""Model → its body, or None where it is of another shape. A memory of `body_of`, asked once per model."""


class Projection:
    """Linear layers that read the same input, as one product, with their adapters beside it."""

    def __init__(self, layers: Sequence[Any]) -> None:
        self.layers = layers
        self.bases = [getattr(layer, "base_layer", layer) for layer in layers]
        if not all(type(base) is nn.Linear for base in self.bases) or not all(map(_plain_adapter, layers)):
            raise ValueError("a layer is not linear, or has an adapter that is more than A and B")
        self.frozen = not any(base.weight.requires_grad for base in self.bases)
        self.sizes = [base.out_features for base in self.bases]
        if self.frozen and len(layers) > 1:  # the same numbers in one place; the modules look into it
            self._joined = torch.cat([base.weight.detach() for base in self.bases])
            for base, piece in zip(self.bases, self._joined.split(self.sizes), strict=True):
                base.weight.data = piece
        if len({base.bias is None for base in self.bases}) > 1:
            raise ValueError("some of the layers have a bias and some have none")

    def weight(self) -> Tensor:
        """[out, in] of all layers, below one another."""
        if len(self.bases) == 1:
            return self.bases[0].weight
        return self._joined if self.frozen else torch.cat([base.weight for base in self.bases])

    def bias(self) -> Tensor | None:
        """[out], if they have any."""
        biases = [base.bias for base in self.bases]
        return None if biases[0] is None else torch.cat(biases) if len(biases) > 1 else biases[0]

    def adapter(self) -> tuple[Tensor, Tensor] | None:
        """(down [r, in], up [out, r]) of the active adapters in the weights' dtype, scaling within `up`."""
        found = [_adapter(layer) for layer in self.layers]
        if not any(found):
            return None
        downs = [pair[0] for pair in found if pair]
        ups = [
            pair[1] * pair[2] if pair else base.weight.new_zeros(base.out_features, 0, dtype=downs[0].dtype)
            for pair, base in zip(found, self.bases, strict=True)
        ]
        dtype = self.bases[0].weight.dtype
        return torch.cat(downs).to(dtype), (torch.block_diag(*ups) if len(ups) > 1 else ups[0]).to(dtype)

    def __call__(self, inputs: Tensor) -> Tensor:
        down, up = self.adapter() or (None, None)
        return _Product.apply(inputs, self.weight(), self.bias(), down, up)


def _plain_adapter(layer: Any) -> bool:
    """Is what peft adds to this layer, if anything, B·A times a number?"""
    if not hasattr(layer, "lora_A"):
        return not hasattr(layer, "base_layer")
    biased = any(up.bias is not None for up in layer.lora_B.values())
    return not biased and not getattr(layer, "lora_variant", None) and len(layer.lora_A) == 1


def _adapter(layer: Any) -> tuple[Tensor, Tensor, float] | None:
    """(A, B, scaling) of the active adapter of a layer; None where it is switched off."""
    if not hasattr(layer, "lora_A") or layer.disable_adapters:
        return None
    name = next((name for name in layer.active_adapters if name in layer.lora_A), None)
    return None if name is None else (layer.lora_A[name].weight, layer.lora_B[name].weight, layer.scaling[name])


class _Product(torch.autograd.Function):
    """inputs·(weight + up·down)ᵀ + bias, without making that sum: [N, in] → [N, out]."""

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


class _Norm(torch.autograd.Function):
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


class _Gate(torch.autograd.Function):
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


class _Rotate(torch.autograd.Function):
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


class _Attend(torch.autograd.Function):
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


class Layer:
    """One decoder layer."""

    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.first, self.second = layer.input_layernorm, layer.post_attention_layernorm
        self.qkv = Projection([attention.q_proj, attention.k_proj, attention.v_proj])
        self.out = Projection([attention.o_proj])
        self.gate_up = Projection([mlp.gate_proj, mlp.up_proj])
        self.down = Projection([mlp.down_proj])
        self.act = mlp.act_fn
        self.silu = isinstance(self.act, nn.SiLU | SiLUActivation)
        self.width: int = attention.head_dim
        self.shared = self.qkv.sizes[1] // self.width
        self.heads = self.qkv.sizes[0] // self.width
        self.query_norm, self.key_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
        self.scale: float = attention.scaling

    @property
    def projections(self) -> tuple[Projection, ...]:
        return self.qkv, self.out, self.gate_up, self.down

    def __call__(
        self, states: Tensor, cos: Tensor, sin: Tensor, nodes: Sequence[Node], past: Sequence[Past] = ()
    ) -> tuple[Tensor, Tensor]:
        """States [N, d] → (states after the layer, keys and values [N, 2·K, D])."""
        heads = self.normed(self.qkv(norm(self.first, states)).unflatten(-1, (-1, self.width)))
        turned = _Rotate.apply(heads, cos, sin, self.heads + self.shared)
        states = states + self.out(_Attend.apply(turned, self.heads, nodes, past, self.scale))
        both = self.gate_up(norm(self.second, states))
        return states + self.down(self.gated(both)), turned.detach()[:, self.heads :]

    def normed(self, heads: Tensor) -> Tensor:
        """Heads [N, H + 2·K, D], queries and keys normalised where the family does so."""
        if self.query_norm is None or self.key_norm is None:
            return heads
        queries, keys, values = heads.split([self.heads, self.shared, self.shared], 1)
        return torch.cat([norm(self.query_norm, queries), norm(self.key_norm, keys), values], 1)

    def gated(self, both: Tensor) -> Tensor:
        """act(gate)·up of both side by side."""
        if self.silu and torch.is_grad_enabled():
            return _Gate.apply(both)
        gate, up = both.chunk(2, -1)
        return self.act(gate).mul_(up) if self.silu else self.act(gate) * up


def norm(module: Any, inputs: Tensor) -> Tensor:
    """What an RMSNorm of transformers makes of inputs [N, …, d]."""
    if torch.is_grad_enabled():
        return _Norm.apply(inputs, module.weight, module.variance_epsilon)
    return functional.rms_norm(inputs, inputs.shape[-1:], module.weight, module.variance_epsilon)


class Body:
    """All layers of a model, from token ids to the states before its head."""

    def __init__(self, model: Any) -> None:
        self.backbone, self.head = model.base_model, model.get_output_embeddings()
        if type(self.backbone.embed_tokens) is not nn.Embedding or type(self.head) is not nn.Linear:
            raise ValueError("the embedding or the head is not a plain one")
        rotary = self.backbone.rotary_emb
        if rotary.rope_type not in ("default", "linear", "llama3", "yarn"):
            raise ValueError("positions are turned by an angle that depends on the length")
        self.layers = [Layer(layer) for layer in self.backbone.layers]

    def parameters(self) -> Iterator[nn.Parameter]:
        """Of everything between ids and logits."""
        yield from self.backbone.parameters()
        yield from self.head.parameters()

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and signed sin [N, 1, D] of positions [N]."""
        cos, sin = self.backbone.rotary_emb(self.head.weight[:1, None], positions[None])
        return cos[0].unsqueeze(1), signed(sin[0]).unsqueeze(1)

    def states(self, forest: Forest, past: Sequence[Sequence[Past]] = (), kept: list[Tensor] | None = None) -> Tensor:
        """Last hidden states [N, d] of a forest's tokens.

        past: per layer, keys and values that trees attend to besides their own. kept: takes the keys and values of the
        forest's tokens, [N, 2·K, D] per layer.
        """
        device = self.head.weight.device
        cos, sin = self.angles(forest.positions.to(device))
        hidden = self.backbone.embed_tokens(forest.ids.to(device))
        recompute = self.backbone.training and getattr(self.backbone, "gradient_checkpointing", False)
        for index, layer in enumerate(self.layers):
            arguments = (hidden, cos, sin, forest.nodes, past[index] if past else ())
            if recompute and torch.is_grad_enabled():
                hidden, new = checkpoint(layer, *arguments, use_reentrant=False, preserve_rng_state=False)
            else:
                hidden, new = layer(*arguments)
            if kept is not None:
                kept.append(new)
        return norm(self.backbone.norm, hidden)


def body_of(model: Any) -> Body | None:
    """The body of a model, or of the one inside its adapter; None, said once, where it is not of Llama's shape."""
    inner = unwrapped(model)
    if not shares_prefix(inner):
        return None
    if inner not in _bodies:
        _bodies[inner] = _read(inner)
        if _bodies[inner] is None:
            log.info("%s is not of Llama's shape: computed by its own modules", type(inner).__name__)
    return _bodies[inner]


@torch.inference_mode(False)  # what is joined is trained with
@torch.no_grad()
def _read(model: Any) -> Body | None:
    """Found by trying: two sequences that part, through both."""
    forest, ids = trial(model)
    try:
        plain = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
        body = Body(model)
        found = body.head(body.states(forest))
        error = max(distance(found[place], one) for place, one in zip(forest.places, plain, strict=True))
    except (AttributeError, TypeError, ValueError, RuntimeError, IndexError) as reason:
        log.debug("%s: %s", type(model).__name__, reason)
        return None
    return body if error < TOLERANCE[model.dtype] else None
