"""One token for every row at a time, for models of Llama's shape: their weights read directly, prompts held once.

A decoding step is short of everything but small calls: with the modules of transformers and peft, most of its time goes
into Python, into laying out weights and into reading keys and values of the same prompt again for each member of a
group. Here projections that read the same input are one product of weights laid out once per update, the rows of a
group attend together to the one copy of their prompt, and prompts that have been read are kept while the weights stay
as they are: the next stage of a trajectory, or another state of the same task, is read from where they part. The
model's own weights are never touched.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
from sortedcontainers import SortedList
from torch import Tensor, nn
from torch.nn import functional

from workbench.agent.functions import norm, turn
from workbench.agent.kernels import kernel_dtype, widens
from workbench.agent.layout import Sampled, laid_out
from workbench.agent.llama import Body, Layer
from workbench.agent.prefix import MIN_SHARED, Past, Tokens, beside, common, pack

KEPT_BYTES = 2**28
"""Keys and values of prompts kept for the next call."""


@dataclass(frozen=True, slots=True)
class Read:
    """A prompt that has been read."""

    cache: tuple[Tensor, ...]
    """Per layer, [2·K, length, D]: keys, then values."""
    logits: Tensor
    """[V], after its last token."""

    @property
    def bytes(self) -> int:
        return self.logits.nbytes + sum(layer.nbytes for layer in self.cache)


class Kept:
    """Prompts that have been read, those used last, within `KEPT_BYTES`."""

    def __init__(self) -> None:
        self._reads: OrderedDict[tuple[int, ...], Read] = OrderedDict()
        self._sorted: SortedList[tuple[int, ...]] = SortedList()
        self._bytes = 0

    def __contains__(self, prompt: tuple[int, ...]) -> bool:
        return prompt in self._reads

    def __getitem__(self, prompt: tuple[int, ...]) -> Read:
        return self._reads[prompt]

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        """Those used longest ago first."""
        return iter(self._reads)

    def keep(self, prompt: tuple[int, ...], read: Read) -> None:
        """Keep a prompt, or say that it was used; those used longest ago leave."""
        if prompt not in self._reads:
            self._reads[prompt] = read
            self._sorted.add(prompt)
            self._bytes += read.bytes
        self._reads.move_to_end(prompt)
        while self._bytes > KEPT_BYTES:
            oldest, gone = self._reads.popitem(last=False)
            self._sorted.remove(oldest)
            self._bytes -= gone.bytes

    def nearest(self, tokens: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
        """The prompt that begins most as `tokens` do, and how many of them: a neighbour of theirs in order."""
        place = self._sorted.bisect_left(tokens)
        beside = self._sorted[max(0, place - 1) : place + 1]
        return max(((other, common(tokens, other)) for other in beside), key=itemgetter(1), default=((), 0))

    def clear(self) -> None:
        self._reads.clear()
        self._sorted.clear()
        self._bytes = 0


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompts side by side, for a model of K key heads."""

    cache: tuple[tuple[Tensor, Tensor], ...]
    """Per layer, keys and values [groups · K, longest, D]."""
    mask: Tensor | None
    """[groups · K, 1, longest], additive, over their ends; None where all are equally long."""


@dataclass(frozen=True, slots=True)
class Seating:
    """Places for the rows in use: those that share a prompt below one another, as many for each prompt."""

    groups: int
    members: Tensor | None
    """[groups · most] int64: the row at each place; None where every row stands at the place of its number."""
    seats: Tensor | None
    """[R] int64: the place of each row."""

    def spread(self, rows: Tensor) -> Tensor:
        """[R, K, n, X], of each row and key head, as [groups · K, most · n, X]."""
        placed = rows if self.members is None else rows[self.members]
        return placed.unflatten(0, (self.groups, -1)).transpose(1, 2).flatten(2, 3).flatten(0, 1)

    def collect(self, places: Tensor, count: int) -> Tensor:
        """The other way, with n = `count`."""
        placed = places.unflatten(1, (-1, count)).unflatten(0, (self.groups, -1)).transpose(1, 2).flatten(0, 1)
        return placed if self.seats is None else placed[self.seats]


def gather(reads: Sequence[Read]) -> Prompts:
    """Put prompts side by side."""
    first = reads[0].cache[0]
    shared, lengths = len(first) // 2, [read.cache[0].shape[1] for read in reads]
    longest, mask = max(lengths), None
    if min(lengths) < longest:
        mask = first.new_zeros(len(reads) * shared, 1, longest)
        for group, length in enumerate(lengths):
            mask[group * shared : (group + 1) * shared, :, length:] = torch.finfo(first.dtype).min

    def stacked(sides: Sequence[Tensor]) -> Tensor:
        return torch.cat([functional.pad(side, (0, 0, 0, longest - side.shape[1])) for side in sides])

    layers = zip(*(read.cache for read in reads), strict=True)
    cache = tuple((stacked([one[:shared] for one in of]), stacked([one[shared:] for one in of])) for of in layers)
    return Prompts(cache, mask)


def seat(rows: Sequence[Sequence[int]], device: torch.device) -> Seating:
    """`rows[g]` are those of group g; each of the rows 0 … R - 1 is in one group."""
    most = max(map(len, rows))
    members = [row for group in rows for row in [*group, *[group[0]] * (most - len(group))]]
    if members == [*range(len(members))]:
        return Seating(len(rows), None, None)
    seats = [0] * sum(map(len, rows))
    for group, of_group in enumerate(rows):
        for place, row in enumerate(of_group):
            seats[row] = group * most + place
    return Seating(len(rows), torch.tensor(members, device=device), torch.tensor(seats, device=device))


class _SampledLayer:
    def __init__(self, layer: Layer) -> None:
        self.layer = layer
        self.qkv, self.out, self.gate_up, self.down = (Sampled(projection) for projection in layer.projections)

    def refresh(self) -> None:
        for projection in (self.qkv, self.out, self.gate_up, self.down):
            projection.refresh()

    def heads(self, states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[R, H + 2·K, D] of states [R, d]: queries and keys turned."""
        layer = self.layer
        heads = layer.normed(self.qkv(norm(layer.first, states)).unflatten(-1, (-1, layer.width)))
        return turn(heads, cos, sin, layer.heads + layer.shared)

    def finish(self, states: Tensor, attended: Tensor) -> Tensor:
        """What the layer makes of its input [R, d] and what its heads saw [R, H·D]."""
        states = states + self.out(attended)
        return states + self.down(self.layer.gated(self.gate_up(norm(self.layer.second, states))))


class Decoder:
    """Decodes for one model: rows stand in slots, the first R of them in use. One that was interrupted is of no use."""

    def __init__(self, body: Body) -> None:
        self.body = body
        self.layers: list[_SampledLayer] = []
        self.kept = Kept()
        self._weights: tuple[object, ...] = ()
        self._head_weight: tuple[object, ...] = ()
        self.shared = body.layers[0].shared
        self.width = body.layers[0].width

    def begin(self, slots: int, sampled: int, length: int) -> None:
        """Take over the weights as they are now, make room for `sampled` tokens in each of `slots` rows.

        length: of the longest sequence.
        """
        body = self.body
        weight = body.head.weight
        self.dtype = kernel_dtype(weight)
        projections = [projection for layer in body.layers for projection in layer.projections]
        for projection in projections:
            projection.weight()  # those that were moved are joined again, which changes where they are
        scalings = tuple(projection.scalings() for projection in projections)
        if (weights := (scalings, fingerprint(body.parameters()))) != self._weights:
            self._weights = weights
            self.kept.clear()
            self._take_over()
        shape = (2, slots, self.shared, sampled, self.width)
        self.cache = [weight.new_zeros(shape, dtype=self.dtype) for _ in body.layers]
        self.mask = weight.new_full((slots, 1, 1, sampled), torch.finfo(self.dtype).min, dtype=self.dtype)
        self.cos, self.sin = body.angles(torch.arange(length, device=weight.device))

    def end(self) -> None:
        """Give back the room that `begin` made: training needs it."""
        self.cache = []

    def _take_over(self) -> None:
        if self.layers:
            for layer in self.layers:
                layer.refresh()
        else:
            self.layers = [_SampledLayer(layer) for layer in self.body.layers]
        head = self.body.head.weight
        now = fingerprint([head])
        # A frozen one is large, and rarely another. One that is trained has changed: a single norm may hide that.
        if head.requires_grad or now != self._head_weight:
            self._head_weight, self._head = now, laid_out(head)

    # --- prompts

    def read(self, prompts: Sequence[Tokens]) -> list[Read]:
        """Prefill: every distinct beginning once, and none that has been kept."""
        whole = [tuple(prompt) for prompt in prompts]
        unknown = sorted({prompt for prompt in whole if prompt not in self.kept})
        found = {prompt: self.kept[prompt] for prompt in whole if prompt in self.kept}
        if unknown:
            found |= dict(zip(unknown, self._read([(prompt, *self._known(prompt)) for prompt in unknown]), strict=True))
        for prompt in whole:
            self.kept.keep(prompt, found[prompt])
        return [found[prompt] for prompt in whole]

    def _known(self, prompt: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
        """The kept prompt that has most in common with this one, and how many tokens; the last one is always read."""
        other, length = self.kept.nearest(prompt[:-1])
        return (other, length) if length >= MIN_SHARED else ((), 0)

    def _read(self, wanted: Sequence[tuple[tuple[int, ...], tuple[int, ...], int]]) -> list[Read]:
        """Read (prompt, kept prompt, tokens in common)s: trees of what is new, each below what is known."""
        trees: dict[tuple[tuple[int, ...], int], list[tuple[int, ...]]] = {}
        for prompt, other, length in wanted:
            trees.setdefault((other, length), []).append(prompt)
        parts = [pack([prompt[length:] for prompt in prompts]) for (_, length), prompts in trees.items()]
        forest, spans = beside(parts, [length for _, length in trees])
        known = [self.kept[other].cache if length else None for other, length in trees]
        past = [
            [
                Past(span.start, span.stop, *cache[index][:, :length].split(self.shared))
                for (_, length), span, cache in zip(trees, spans, known, strict=True)
                if cache is not None
            ]
            for index in range(len(self.layers))
        ]
        fresh: list[Tensor] = []
        hidden = self.body.states(forest, past, fresh)
        logits = self._head(torch.stack([hidden[place[-1]] for place in forest.places]), self.body.head.bias)
        reads: dict[tuple[int, ...], Read] = {}
        places, rows = iter(forest.places), iter(logits)
        for ((_, length), prompts), cache in zip(trees.items(), known, strict=True):
            for prompt in prompts:
                index = next(places).to(hidden.device)
                layers = [layer[index].transpose(0, 1).to(self.dtype) for layer in fresh]
                if cache is not None:
                    layers = [torch.cat([old[:, :length], new], 1) for old, new in zip(cache, layers, strict=True)]
                reads[prompt] = Read(tuple(layers), next(rows).clone())
        return [reads[prompt] for prompt, _, _ in wanted]

    # --- rows

    def clear(self, slot: int) -> None:
        """A new row begins here."""
        self.mask[slot] = torch.finfo(self.dtype).min

    def move(self, source: int, target: int) -> None:
        """The row of one slot goes into another."""
        for buffer in self.cache:
            buffer[:, target] = buffer[:, source]
        self.mask[target] = self.mask[source]

    def step(
        self, ids: Tensor, positions: Tensor, sampled: Sequence[int], prompts: Prompts, seating: Seating
    ) -> Tensor:
        """Logits [R, V] after one more token of each row.

        ids, positions: [R] int64, the token, and where it stands in its sequence; sampled: where among the sampled ones
        of its row.
        """
        count, shared, used = len(ids), self.shared, max(sampled) + 1
        together = min(sampled) == used - 1
        rows = slice(count) if together else torch.arange(count, device=ids.device)
        places = used - 1 if together else torch.tensor(sampled, device=ids.device)
        self.mask[:, 0, 0][rows, places] = 0
        mask = None
        if not together:
            mask = self.mask[:count, ..., :used].expand(-1, shared, -1, -1).reshape(count * shared, 1, used)
        cos, sin = self.cos[positions], self.sin[positions]
        hidden = self.body.backbone.embed_tokens(ids)
        for index, (layer, cache) in enumerate(zip(self.layers, self.cache, strict=True)):
            heads = layer.heads(hidden, cos, sin).to(self.dtype)
            cache.permute(1, 3, 0, 2, 4)[rows, places] = heads[:, -2 * shared :].unflatten(1, (2, shared))
            queries = heads[:, : -2 * shared].unflatten(1, (shared, -1))
            own = cache.flatten(1, 2)[:, : count * shared, :used]
            seen = _see(queries, own, mask, prompts.cache[index], prompts.mask, seating, layer.layer.scale)
            hidden = layer.finish(hidden, seen.view(count, -1).to(hidden.dtype))
        return self._head(norm(self.body.backbone.norm, hidden), self.body.head.bias)


def _see(
    queries: Tensor,
    own: Tensor,
    mask: Tensor | None,
    prompt: tuple[Tensor, Tensor],
    ends: Tensor | None,
    seats: Seating,
    scale: float,
) -> Tensor:
    """What queries [R, K, H / K, D] see of their prompts and of their own tokens: [R · K, H / K, D].

    own: keys and values [2, R · K, used, D], mask [R · K, 1, used] over them. prompt: keys and values
    [groups · K, longest, D], ends [groups · K, 1, longest] over them.
    """
    heads, length = queries.shape[2], prompt[0].shape[1]
    far = _scores(seats.spread(queries), prompt[0], ends, scale)
    near = _scores(queries.flatten(0, 1), own[0], mask, scale)
    scores = torch.cat([far, seats.spread(near.unflatten(0, queries.shape[:2]))], -1)
    shares = torch.softmax(scores, -1).to(queries.dtype)
    seen = seats.collect(torch.bmm(shares[..., :length], prompt[1]), heads).flatten(0, 1)
    return torch.baddbmm(seen, seats.collect(shares[..., length:], heads).flatten(0, 1), own[1])


def _scores(queries: Tensor, keys: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Products of queries [B, n, D] and keys [B, S, D] times `scale`: [B, n, S], scaled in fp32 at least."""
    keys, wide = keys.transpose(1, 2), torch.promote_types(queries.dtype, torch.float32)
    if queries.dtype != wide and widens(queries.device.type, queries.dtype):
        scores = torch.bmm(queries, keys, out_dtype=wide).mul_(scale)
    else:
        scores = torch.bmm(queries.to(wide) * scale, keys.to(wide))
    return scores if mask is None else scores.add_(mask)


def fingerprint(parameters: Iterable[nn.Parameter]) -> tuple[object, ...]:
    """Changes when weights do, in place or by others in their place; those that are trained also when `.data` does.

    Of the last, what is seen is the norm in fp32: an optimizer's step, not a change of signs. Numbers that are written
    into frozen weights past torch, through `.data` or numpy, are not seen.
    """
    weights = list(parameters)
    trained = [weight.detach() for weight in weights if weight.requires_grad]
    norms = torch.stack(torch._foreach_norm(trained, dtype=torch.float32)).tolist() if trained else []
    return *norms, *((weight.data_ptr(), weight._version) for weight in weights)


def bytes_per_token(model: Any) -> int:
    """Memory of one position's keys and values in all layers, from the model's config."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    itemsize = kernel_dtype(torch.empty(0, dtype=model.dtype, device=model.device)).itemsize
    return int(2 * config.num_hidden_layers * heads * dim * itemsize)
