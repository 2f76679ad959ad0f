"""Models of Llama's shape, read as weights: the layers of a forest of tokens in few and large calls.

The modules of transformers and peft compute each projection and each adapter on their own, and keep for the backward
pass what is cheap to compute again. Here projections that read the same input are one product with one adapter beside
it, and a layer keeps little more than its inputs, its heads and its gates. Parameters are those of the model, and so
are their gradients. Whether this computes what the model computes is found by trying (`body_of`).
"""

from __future__ import annotations

import copy
import logging
import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from operator import is_
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.activations import SiLUActivation

from workbench.agent.attention import TOLERANCE, Trial, distance, shares_prefix, through, trial, unwrapped
from workbench.agent.functions import Attend, Gate, Product, Rotate, Together, norm, signed
from workbench.agent.prefix import Forest, Node, Past

log = logging.getLogger(__name__)

_bodies: WeakKeyDictionary[nn.Module, tuple[list[nn.Module], Body | None]] = WeakKeyDictionary()
"""Model → the modules below it when it was read, and its body. A memory of `body_of`."""
_reading = threading.Lock()

NOISE = 2**16 + 1
"""Numbers that are drawn to try a layer; a prime, so that rows of a weight differ."""


class Projection:
    """Linear layers that read the same input, as one product, with their adapters beside it."""

    def __init__(self, layers: Sequence[Any]) -> None:
        self.layers = layers
        self.bases = [getattr(layer, "base_layer", layer) for layer in layers]
        if not all(type(base) is nn.Linear for base in self.bases) or not all(map(_plain_adapter, layers)):
            raise ValueError("a layer is not linear, or has an adapter that is more than A and B")
        self.sizes = [base.out_features for base in self.bases]
        if len({base.bias is None for base in self.bases}) > 1:
            raise ValueError("some of the layers have a bias and some have none")
        self._join()

    @torch.inference_mode(False)  # what is joined is trained with
    @torch.no_grad()
    def _join(self) -> None:
        """Put the same numbers in one place; the modules look into it from then on."""
        if len(self.bases) > 1:
            self._joined = torch.cat([base.weight for base in self.bases])
            for base, piece in zip(self.bases, self._joined.split(self.sizes), strict=True):
                base.weight.data = piece

    def weight(self) -> Tensor:
        """[out, in] of all layers, below one another."""
        weights = [base.weight for base in self.bases]
        if len(weights) == 1:
            return weights[0]
        start = self._joined.data_ptr()
        for weight in weights:  # a model that was moved or converted has them elsewhere
            if weight.data_ptr() != start:
                self._join()
                break
            start += weight.nbytes
        return Together.apply(self._joined, *weights)

    def parameters(self) -> Iterator[nn.Parameter]:
        """All that it reads."""
        for layer, base in zip(self.layers, self.bases, strict=True):
            yield from base.parameters()
            for side in ("lora_A", "lora_B"):
                yield from getattr(layer, side, nn.ModuleDict()).parameters()

    def bias(self) -> Tensor | None:
        """[out], if they have any."""
        biases = [base.bias for base in self.bases]
        return None if biases[0] is None else torch.cat(biases) if len(biases) > 1 else biases[0]

    def scalings(self) -> tuple[float | None, ...]:
        """Of the active adapter of each layer; None where it is switched off."""
        return tuple(pair and pair[2] for pair in map(_adapter, self.layers))

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
        return Product.apply(inputs, self.weight(), self.bias(), down, up)


def _plain_adapter(layer: Any) -> bool:
    """Is what peft adds to this layer, if anything, B·A times a number?"""
    if not hasattr(layer, "lora_A"):
        return not hasattr(layer, "base_layer")
    biased = any(up.bias is not None for up in layer.lora_B.values())
    dropped = any(getattr(module, "p", 0) > 0 for module in layer.lora_dropout.values())
    return not biased and not dropped and not getattr(layer, "lora_variant", None) and len(layer.lora_A) == 1


def _adapter(layer: Any) -> tuple[Tensor, Tensor, float] | None:
    """(A, B, scaling) of the active adapter of a layer; None where it is switched off."""
    if not hasattr(layer, "lora_A") or layer.disable_adapters or layer.merged:
        return None
    name = next((name for name in layer.active_adapters if name in layer.lora_A), None)
    return None if name is None else (layer.lora_A[name].weight, layer.lora_B[name].weight, layer.scaling[name])


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
        read = {id(parameter) for parameter in self.parameters()}
        if any(id(parameter) not in read for parameter in layer.parameters()):
            raise ValueError("a layer has weights that are not read here")

    def parameters(self) -> Iterator[nn.Parameter]:
        """All that it reads."""
        for module in (self.first, self.second, self.query_norm, self.key_norm):
            if module is not None:
                yield module.weight
        for projection in self.projections:
            yield from projection.parameters()

    @property
    def projections(self) -> tuple[Projection, ...]:
        return self.qkv, self.out, self.gate_up, self.down

    def __call__(
        self, states: Tensor, cos: Tensor, sin: Tensor, nodes: Sequence[Node], past: Sequence[Past] = ()
    ) -> tuple[Tensor, Tensor]:
        """States [N, d] → (states after the layer, keys and values [N, 2·K, D])."""
        heads = self.normed(self.qkv(norm(self.first, states)).unflatten(-1, (-1, self.width)))
        turned = Rotate.apply(heads, cos, sin, self.heads + self.shared)
        states = states + self.out(Attend.apply(turned, self.heads, nodes, past, self.scale))
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
            return Gate.apply(both)
        gate, up = both.chunk(2, -1)
        return self.act(gate).mul_(up) if self.silu else self.act(gate) * up


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
    """The body of a model, or of the one inside its adapter; None, said once, where it is not of Llama's shape.

    Read again when modules were exchanged, added or taken away: an adapter put on or off, another activation.
    """
    inner = unwrapped(model)
    if not shares_prefix(inner):
        return None
    modules = [module for module in inner.modules() if module is not inner]
    with _reading:
        if inner not in _bodies or not _same(_bodies[inner][0], modules):
            _bodies[inner] = modules, _read(inner)
        return _bodies[inner][1]


def _same(one: Sequence[nn.Module], other: Sequence[nn.Module]) -> bool:
    return len(one) == len(other) and all(map(is_, one, other))


@torch.no_grad()
def _read(model: Any) -> Body | None:
    try:
        body = Body(model)
        wrong = _wrong(model, body)
    except torch.OutOfMemoryError:
        raise
    except (AttributeError, TypeError, ValueError, RuntimeError, IndexError) as error:
        wrong = str(error)
    if wrong:
        log.warning("%s is computed by its own modules, which is slower: %s", type(model).__name__, wrong)
        return None
    return body


def _wrong(model: Any, body: Body) -> str | None:
    """What shows that the body is not the model's, found by trying two sequences that part.

    Its logits are those of the model's own modules to rounding; how much that is in this dtype shows in what the
    modules make of the sequences packed and one after the other. With weights that are small or zero, logits do not
    show what a layer does; so each is tried with others in their place.
    """
    test = trial(model)
    if not (off := _layers_off(model, body, test)) < TOLERANCE[torch.float32]:
        return f"a layer would be off by {off:.1g}"
    plain = model(**test.inputs, use_cache=False).logits
    packed = through(model, test.forest).logits[0]
    if not packed.isfinite().all():
        return "its logits are not finite, so nothing can be tried"
    off = distance(body.head(body.states(test.forest)), packed)
    if not off < max(TOLERANCE[torch.float32], 3 * test.error(packed, plain)):
        return f"its logits would be off by {off:.1g}"
    return None


@dataclass(frozen=True, slots=True)
class Call:
    """What a layer of the model was given, and what it made of it."""

    states: Tensor
    others: tuple[Any, ...]
    named: dict[str, Any]
    output: Tensor


def _layers_off(model: Any, body: Body, test: Trial) -> float:
    """How far layers are from the model's own, relative to what a layer adds: 0, or of the first that is too far.

    Each is tried as a copy in fp32 whose weights are drawn so that each of them matters. What a layer is given must be
    what the one before it made, or the embedding.
    """
    calls = _calls(model, body, test)
    wide = torch.promote_types(model.dtype, torch.float32)
    noise = Noise(torch.randn(NOISE, generator=torch.Generator().manual_seed(0)).to(model.device, wide))
    angles = body.angles(test.forest.positions.to(model.device))
    before = body.backbone.embed_tokens(test.forest.ids.to(model.device))[None]
    for layer, call in zip(body.backbone.layers, calls, strict=True):
        if not torch.equal(call.states, before):
            return math.inf
        if not (off := _layer_off(layer, call, noise, angles, test)) < TOLERANCE[torch.float32]:
            return off
        before = call.output
    return 0.0


def _calls(model: Any, body: Body, test: Trial) -> list[Call]:
    """What each layer is given, in order, by this thread: others may be using the model."""
    calls: list[Call] = []
    here = threading.get_ident()

    def note(_: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        if threading.get_ident() == here:
            calls.append(Call(arguments[0], arguments[1:], named, output))

    with ExitStack() as stack:
        for layer in body.backbone.layers:
            stack.callback(layer.register_forward_hook(note, with_kwargs=True).remove)
        through(model, test.forest)
    return calls


def _layer_off(layer: nn.Module, call: Call, noise: Noise, angles: tuple[Tensor, Tensor], test: Trial) -> float:
    twin = copy.deepcopy(layer).to(noise.numbers.dtype)
    for parameter in twin.parameters():  # matrices keep the size of what they are given, vectors are about 1
        drawn = noise.draw(parameter.shape)
        parameter.copy_(drawn / parameter.shape[-1] ** 0.5 if parameter.dim() > 1 else 1 + drawn.clamp(-2, 2) / 4)
    inputs = noise.draw(call.states.shape)
    theirs = twin(inputs, *call.others, **call.named)
    ours, _ = Layer(twin)(inputs[0], *angles, test.forest.nodes)
    return distance(ours - inputs[0], theirs[0] - inputs[0])


class Noise:
    """Normal random numbers for many weights at little cost: a few, taken again and again from another place."""

    def __init__(self, numbers: Tensor) -> None:
        self.numbers = numbers

    def draw(self, shape: torch.Size) -> Tensor:
        """A tensor that begins elsewhere than the one before: equal shapes get other numbers."""
        self.numbers = self.numbers.roll(40_503)
        return self.numbers.repeat(-(-shape.numel() // NOISE))[: shape.numel()].view(shape)
