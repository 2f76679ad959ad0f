"""Preallocated keys and values for decoding: one slot per row, of its own length, filled and freed independently."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer


class _SlotLayer(CacheLayerMixin):
    """Keys and values of one layer, [slots, heads, length, dim], of which the first rows are in use."""

    def __init__(self, keys: Tensor, values: Tensor, owner: SlotCache) -> None:
        super().__init__()
        self.keys, self.values, self.owner = keys, values, owner
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        rows, positions, used = self.owner.rows, self.owner.positions, self.owner.used
        self.keys[rows, :, positions] = key_states[:, :, 0]
        self.values[rows, :, positions] = value_states[:, :, 0]
        return self.keys[: len(rows), :, :used], self.values[: len(rows), :, :used]

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocated at construction."""

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.owner.used, 0

    def get_seq_length(self) -> int:
        return self.owner.used - 1

    def get_max_length(self) -> int:
        return int(self.keys.shape[2])


class SlotCache(Cache):
    """A transformers cache for decoding rows of different lengths side by side.

    Slot r holds positions 0 … length_r - 1 of its row. Each decoding step writes one position per row and attends to
    the used part; an additive mask, [slots, 1, 1, length], opened one position at a time, hides the rest. Rows in use
    are always the first ones, so that a finished row is dropped by moving the last one into its slot.
    """

    def __init__(self, slots: int, length: int, like: DynamicCache) -> None:
        layers = []
        for layer in like.layers:
            heads, dim = layer.keys.shape[1], layer.keys.shape[3]
            keys = layer.keys.new_zeros(slots, heads, length, dim)
            values = layer.values.new_zeros(slots, heads, length, layer.values.shape[3])
            layers.append(_SlotLayer(keys, values, self))
        super().__init__(layers=layers)
        first = like.layers[0].keys
        self.hidden = torch.finfo(first.dtype).min
        self.mask = first.new_full((slots, 1, 1, length), self.hidden)
        self.rows = torch.arange(0, device=first.device)
        self.positions = self.rows
        self.used = 0

    def write(self, slots: Sequence[int], prefilled: DynamicCache, rows: Sequence[int], lengths: Sequence[int]) -> None:
        """Copy row `rows[i]`, `lengths[i]` long, of a right-padded cache into slot `slots[i]` (consecutive)."""
        first, stop = slots[0], slots[-1] + 1
        width = max(lengths)
        index = torch.tensor(rows, device=self.mask.device)
        for layer, source in zip(self.layers, prefilled.layers, strict=True):
            layer.keys[first:stop, :, :width] = source.keys[index, :, :width]
            layer.values[first:stop, :, :width] = source.values[index, :, :width]
        self.mask[first:stop] = self.hidden
        for slot, length in zip(slots, lengths, strict=True):
            self.mask[slot, ..., :length] = 0

    def move(self, source: int, target: int, length: int) -> None:
        """Put the row of one slot, `length` positions long, into another."""
        for layer in self.layers:
            layer.keys[target, :, :length] = layer.keys[source, :, :length]
            layer.values[target, :, :length] = layer.values[source, :, :length]
        self.mask[target] = self.mask[source]

    def open(self, positions: Tensor, used: int) -> Tensor:
        """Begin a step in which row r writes position `positions[r]`; returns the mask [rows, 1, 1, used]."""
        self.rows = torch.arange(len(positions), device=positions.device)
        self.positions, self.used = positions, used
        self.mask[self.rows, 0, 0, positions] = 0
        return self.mask[: len(positions), ..., :used]


def supports_slots(model: Any) -> bool:
    """Can this model decode through `SlotCache`? Full attention in every layer, positions given, a 4-d mask taken.

    Others (sliding windows, recurrent layers, ALiBi, flash attention) are decoded prompt by prompt with the cache
    transformers makes for them.
    """
    return (
        full_attention(model)
        and model.config._attn_implementation in ("sdpa", "eager", "shared_prefix")
        and {"cache", "position_ids"} <= inspect.signature(model.forward).parameters.keys()
    )


def full_attention(model: Any) -> bool:
    """Does every layer attend to all that came before, through transformers' attention interface?"""
    config = model.config.get_text_config()
    cache = DynamicCache(config=config)
    return (
        bool(cache.layers)
        and all(type(layer) is DynamicLayer for layer in cache.layers)
        and not getattr(config, "alibi", False)
        and getattr(model, "_supports_attention_backend", False)
    )


def bytes_per_token(model: Any) -> int:
    """Memory of one position's keys and values in all layers, from the model's config."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * dim * model.dtype.itemsize)
