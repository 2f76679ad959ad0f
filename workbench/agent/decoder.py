"""One token for every row at a time, for models of Llama's shape: their weights read directly, prompts held once.

A decoding step is short of everything but small calls: with the modules of transformers and peft, most of its time goes
into Python and into reading keys and values of the same prompt again for each member of a group. Here the projections
that read the same input are one product, an adapter is merged where that is exact to rounding (fp32) and applied beside
the weights where it is not (bf16 would round most of it away), and the rows of a group attend together to the one copy
of their prompt. The model's own weights are never touched. Whether all this computes what the model computes is found
out by trying, once per model; other families are decoded by transformers.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import DynamicCache

from workbench.agent.attention import TOLERANCE, part, shares_prefix, states
from workbench.agent.prefix import Tokens, pack

log = logging.getLogger(__name__)

_fits: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
"""Model → can it be decoded here? A memory of `decodes`, asked once per model."""


class Projection:
    """Linear layers that read the same input, as one product; an adapter within or beside it."""

    def __init__(self, layers: Sequence[Any], *, merged: bool) -> None:
        self.layers, self.merged = layers, merged
        bases = [getattr(layer, "base_layer", layer) for layer in layers]
        adapted = any(hasattr(layer, "lora_A") for layer in layers)
        self.bases = bases
        self.frozen = not any(base.weight.requires_grad for base in bases) and not (adapted and merged)
        copied = len(layers) > 1 or (adapted and merged)
        self.weight = torch.cat([base.weight for base in bases]) if copied else bases[0].weight
        self.copied = copied
        biases = [base.bias for base in bases]
        self.bias = torch.cat(biases) if all(bias is not None for bias in biases) else None
        if self.bias is None and any(bias is not None for bias in biases):
            raise ValueError("some of the layers have a bias and some have none")
        self.down: Tensor | None = None
        self.up: Tensor | None = None

    def refresh(self) -> None:
        """Take over the weights as they are now."""
        if not self.frozen and self.copied:
            for target, base, layer in zip(self._targets(), self.bases, self.layers, strict=True):
                target.copy_(base.weight)
                if self.merged:
                    for down, up, scale in _adapters(layer):
                        target.addmm_(up.to(target.dtype), down.to(target.dtype), alpha=scale)
        if not self.frozen and self.bias is not None:
            self.bias = torch.cat([base.bias for base in self.bases])
        self.down = self.up = None
        found = [_adapters(layer) for layer in self.layers]
        if not self.merged and any(found):
            downs = [down for pairs in found for down, _, _ in pairs]
            ups = [torch.cat([up * scale for _, up, scale in pairs], 1) for pairs in found]
            self.down, self.up = torch.cat(downs).to(self.weight.dtype), torch.block_diag(*ups).to(self.weight.dtype)

    def _targets(self) -> tuple[Tensor, ...]:
        return self.weight.split([len(base.weight) for base in self.bases])

    def __call__(self, inputs: Tensor) -> Tensor:
        out = functional.linear(inputs, self.weight, self.bias)
        if self.down is not None and self.up is not None:
            out.addmm_(functional.linear(inputs, self.down), self.up.T)
        return out


def _adapters(layer: Any) -> list[tuple[Tensor, Tensor, float]]:
    """(A, B, scaling) of the active adapters of a layer; none where they are switched off."""
    if not hasattr(layer, "lora_A") or layer.disable_adapters:
        return []
    names = [name for name in layer.active_adapters if name in layer.lora_A]
    return [(layer.lora_A[name].weight, layer.lora_B[name].weight, layer.scaling[name]) for name in names]


class _Layer:
    def __init__(self, layer: Any, *, merged: bool) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.first, self.second = layer.input_layernorm, layer.post_attention_layernorm
        self.qkv = Projection([attention.q_proj, attention.k_proj, attention.v_proj], merged=merged)
        self.out = Projection([attention.o_proj], merged=merged)
        self.gate_up = Projection([mlp.gate_proj, mlp.up_proj], merged=merged)
        self.down = Projection([mlp.down_proj], merged=merged)
        self.act = mlp.act_fn
        self.width: int = attention.head_dim
        self.shared = len(self.qkv.bases[1].weight) // self.width
        self.heads = len(self.qkv.bases[0].weight) // self.width
        self.query_norm, self.key_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
        self.scale: float = attention.scaling

    def refresh(self) -> None:
        for projection in (self.qkv, self.out, self.gate_up, self.down):
            projection.refresh()

    def queries_keys_values(self, states: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[R, H, D], [R, K, D], [R, K, D] of states [R, d]; cos and sin are [R, 1, D]."""
        heads = self.qkv(self.first(states)).unflatten(-1, (-1, self.width))
        turned, value = heads[:, : self.heads + self.shared], heads[:, self.heads + self.shared :]
        if self.query_norm is not None and self.key_norm is not None:
            parts = turned.split([self.heads, self.shared], 1)
            turned = torch.cat([self.query_norm(parts[0]), self.key_norm(parts[1])], 1)
        half = self.width // 2
        swapped = torch.cat([-turned[..., half:], turned[..., :half]], -1)
        turned = turned * cos + swapped * sin
        return turned[:, : self.heads], turned[:, self.heads :], value

    def finish(self, states: Tensor, attended: Tensor) -> Tensor:
        """What the layer makes of its input [R, d] and what its heads saw [R, H·D]."""
        states = states + self.out(attended)
        gate, up = self.gate_up(self.second(states)).chunk(2, -1)
        return states + self.down(self.act(gate) * up)


@dataclass(frozen=True, slots=True)
class Read:
    """A prompt that has been read."""

    keys: tuple[Tensor, ...]
    """Per layer, [K, length, D]; values alike."""
    values: tuple[Tensor, ...]
    logits: Tensor
    """[V], after its last token."""


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompts side by side."""

    keys: tuple[Tensor, ...]
    """Per layer, [groups, K, longest, D]; values alike."""
    values: tuple[Tensor, ...]
    mask: Tensor | None
    """[groups, 1, 1, longest], additive, over their ends; None where all are equally long."""


@dataclass(frozen=True, slots=True)
class Seating:
    """The rows in use, by the prompt that they share."""

    members: Tensor
    """[groups, most] int64: rows of each group, filled up with its first."""
    seats: Tensor
    """[R] int64: where each row stands in `members`, flat."""


def gather(reads: Sequence[Read]) -> Prompts:
    """Put prompts side by side."""
    lengths = [read.keys[0].shape[1] for read in reads]
    longest, first, mask = max(lengths), reads[0].keys[0], None
    if min(lengths) < longest:
        mask = first.new_zeros(len(reads), 1, 1, longest)
        for group, length in enumerate(lengths):
            mask[group, ..., length:] = torch.finfo(first.dtype).min
    keys, values = (
        tuple(
            torch.stack([functional.pad(one, (0, 0, 0, longest - one.shape[1])) for one in layer])
            for layer in zip(*side, strict=True)
        )
        for side in ([read.keys for read in reads], [read.values for read in reads])
    )
    return Prompts(keys, values, mask)


def seat(rows: Sequence[Sequence[int]], device: torch.device) -> Seating:
    """`rows[g]` are those of group g; each of the rows 0 … R - 1 is in one group."""
    most = max(map(len, rows))
    seats = [0] * sum(map(len, rows))
    for group, members in enumerate(rows):
        for place, row in enumerate(members):
            seats[row] = group * most + place
    table = [[*members, *[members[0]] * (most - len(members))] for members in rows]
    return Seating(torch.tensor(table, device=device), torch.tensor(seats, device=device))


class Decoder:
    """Decodes for one model: rows stand in slots, the first R of them in use."""

    def __init__(self, model: Any) -> None:
        self.model = model.get_base_model() if hasattr(model, "get_base_model") else model
        self.backbone, self.head = self.model.base_model, self.model.get_output_embeddings()
        # In bf16 a merged weight would keep only what of the adapter is above 1/256 of it.
        merged = self.model.dtype == torch.float32
        self.layers = [_Layer(layer, merged=merged) for layer in self.backbone.layers]
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def begin(self, slots: int, sampled: int, length: int) -> None:
        """Take over the weights as they are now, make room for `sampled` tokens in each of `slots` rows.

        length: of the longest sequence.
        """
        for layer in self.layers:
            layer.refresh()
        weight = self.head.weight
        shapes = [(slots, layer.shared, sampled, layer.width) for layer in self.layers]
        self.keys, self.values = ([weight.new_zeros(shape) for shape in shapes] for _ in range(2))
        self.mask = weight.new_full((slots, 1, 1, sampled), torch.finfo(weight.dtype).min)
        cos, sin = self.backbone.rotary_emb(weight[:1, None], torch.arange(length, device=weight.device)[None])
        self.cos, self.sin = cos[0].unsqueeze(1), sin[0].unsqueeze(1)

    def read(self, prompts: Sequence[Tokens]) -> list[Read]:
        """Prefill: every distinct beginning once."""
        forest, cache = pack(prompts), DynamicCache(config=self.model.config.get_text_config())
        hidden = states(self.backbone, forest, cache)
        logits = self.head(torch.stack([hidden[place[-1]] for place in forest.places]))
        found = []
        for place, one in zip(forest.places, logits, strict=True):
            index = place.to(hidden.device)
            keys = tuple(layer.keys[0][:, index] for layer in cache.layers)
            found.append(Read(keys, tuple(layer.values[0][:, index] for layer in cache.layers), one))
        return found

    def clear(self, slot: int) -> None:
        """A new row begins here."""
        self.mask[slot] = torch.finfo(self.mask.dtype).min

    def move(self, source: int, target: int) -> None:
        """The row of one slot goes into another."""
        for buffer in (*self.keys, *self.values, self.mask):
            buffer[target] = buffer[source]

    def step(
        self, ids: Tensor, positions: Tensor, sampled: Tensor, used: int, prompts: Prompts, seating: Seating
    ) -> Tensor:
        """Logits [R, V] after one more token of each row.

        ids, positions, sampled: [R] int64, the token, and where it stands in its sequence and among the sampled ones,
        of which no row has more than `used`.
        """
        rows = torch.arange(len(ids), device=ids.device)
        self.mask[rows, 0, 0, sampled] = 0
        mask = self.mask[: len(ids), ..., :used]
        cos, sin = self.cos[positions], self.sin[positions]
        hidden = functional.embedding(ids, self.backbone.embed_tokens.weight)
        for index, layer in enumerate(self.layers):
            query, key, value = layer.queries_keys_values(hidden, cos, sin)
            self.keys[index][rows, :, sampled] = key
            self.values[index][rows, :, sampled] = value
            query = query.unflatten(1, (layer.shared, -1))
            own = self.keys[index][: len(ids), :, :used], self.values[index][: len(ids), :, :used]
            near, inner = part(query, *own, False, layer.scale, mask)
            far, outer = _by_group(query, prompts, seating, index, layer.scale)
            seen = torch.lerp(near, far, torch.sigmoid(outer - inner).unsqueeze(-1).to(near.dtype))
            hidden = layer.finish(hidden, seen.flatten(1))
        return self.head(self.backbone.norm(hidden))


def _by_group(query: Tensor, prompts: Prompts, seating: Seating, index: int, scale: float) -> tuple[Tensor, Tensor]:
    """What rows [R, K, H / K, D] see of their prompts, and the log-sum-exp [R, K, H / K]."""
    count, most = seating.members.shape
    shared, heads, width = query.shape[1:]
    asked = query[seating.members].transpose(1, 2).reshape(count, shared, most * heads, width)
    out, sums = part(asked, prompts.keys[index], prompts.values[index], False, scale, prompts.mask)
    out = out.view(count, shared, most, heads, width).transpose(1, 2).reshape(-1, shared, heads, width)
    sums = sums.view(count, shared, most, heads).transpose(1, 2).reshape(-1, shared, heads)
    return out[seating.seats], sums[seating.seats]


def decodes(model: Any) -> bool:
    """Whether `Decoder` computes for this model what the model computes, found by trying it on a few tokens."""
    if model not in _fits:
        _fits[model] = shares_prefix(model) and _agrees(model)
        if not _fits[model]:
            log.info("%s is not of Llama's shape: decoded by transformers", type(model).__name__)
    return _fits[model]


@torch.inference_mode()
def _agrees(model: Any) -> bool:
    rotary = getattr(model.base_model, "rotary_emb", None)
    if getattr(rotary, "rope_type", None) not in ("default", "linear", "llama3", "yarn"):
        return False  # others turn a position by an angle that depends on the length
    size = min(7, int(model.config.get_text_config().vocab_size))
    prompts = [[1 % size, 2 % size, 3 % size], [2 % size, 4 % size]]
    tokens = [[5 % size, 0, 3 % size], [0, 1 % size, 6 % size], [6 % size, 6 % size, 2 % size]]
    rows = [[0, 2], [1]]
    device = next(model.parameters()).device
    try:
        decoder = Decoder(model)
        decoder.begin(3, 3, 6)
        side, seating = gather(decoder.read(prompts)), seat(rows, device)
        starts = [prompts[0], prompts[1], prompts[0]]
        for count in range(3):
            ids = torch.tensor([row[count] for row in tokens], device=device)
            positions = torch.tensor([len(start) + count for start in starts], device=device)
            found = decoder.step(ids, positions, torch.full_like(ids, count), count + 1, side, seating)
    except (AttributeError, TypeError, ValueError, RuntimeError, IndexError) as reason:
        log.debug("%s: %s", type(model).__name__, reason)
        return False
    for row, (start, sampled) in enumerate(zip(starts, tokens, strict=True)):
        plain = model(input_ids=torch.tensor([[*start, *sampled]], device=device), use_cache=False).logits[0, -1]
        error = (found[row].float() - plain.float()).norm() / plain.float().norm()
        if not error < TOLERANCE[model.dtype]:
            return False
    return True


def bytes_per_token(model: Any) -> int:
    """Memory of one position's keys and values in all layers, from the model's config."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * dim * model.dtype.itemsize)
