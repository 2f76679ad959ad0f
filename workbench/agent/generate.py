"""Sampling actions: what prompts begin with in common is read once, their members decoded together, every row from a
seed of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import DynamicCache

from workbench.agent.attention import unwrapped
from workbench.agent.decoder import Decoder, Prompts, Read, Seating, bytes_per_token, gather, seat
from workbench.agent.llama import body_of
from workbench.agent.logprobs import split_head, tempered
from workbench.agent.policy import Policy
from workbench.types import Action, StopReason, WorkbenchError

OnFinish = Callable[[int, int, Action], None]
"""Called with (prompt index, member index, action) as soon as a row ends."""

MAX_ROWS = 128
"""Rows decoded side by side; the rest wait for a free slot."""
PREFILL_TOKENS = 8192
"""Prompt tokens of one prefill forward, those that begin alike counted each."""
BLOCK = 256
"""Tokens of a block of the vocabulary, in drawing one."""
CACHE_BYTES = 2**30
"""Keys and values held at once on a CPU; on a GPU a quarter of its memory."""


class Generator(Protocol):
    """What a rollout asks of a sampling back-end; it says nothing of where the model runs."""

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        *,
        temperature: float,
        max_new_tokens: int,
        seeds: Sequence[Sequence[int]],
        on_finish: OnFinish | None = None,
        greedy: bool = False,
    ) -> list[list[Action]]:
        """`n` actions for each prompt, [prompt][member]; `seeds[prompt][member]` alone decides what is drawn."""
        ...


class HFGenerator:
    """Samples from the policy's own transformers model, in this process.

    Sampling is from softmax(logits / temperature), whole: no top-k, top-p, min-p or repetition penalty, whatever a
    checkpoint's generation config says. Keys and values of prompts are kept while the weights stay as they are;
    frozen ones that were written past torch (`.data`, numpy) are not noticed, and need another generator.
    """

    def __init__(self, policy: Policy, *, max_rows: int = MAX_ROWS) -> None:
        self.policy = policy
        self.max_rows = max_rows
        self._decoder: Decoder | None = None
        self._calls: dict[str, object] = {}
        """The call under way; a dict, for its `setdefault` asks and takes at once."""

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        *,
        temperature: float,
        max_new_tokens: int,
        seeds: Sequence[Sequence[int]],
        on_finish: OnFinish | None = None,
        greedy: bool = False,
    ) -> list[list[Action]]:
        """Sample `n` actions for each prompt.

        Row (i, j) takes its t-th token where the cumulative distribution passes the t-th uniform number of a generator
        seeded by `seeds[i][j]`; so it does not depend on its neighbours, up to rounding. `greedy` takes the likeliest
        token instead. The stop token, when one is sampled, is the last of `token_ids`. `sampler_logprobs` are
        log_softmax(logits / temperature) in fp32. One call at a time: what is interrupted leaves nothing behind.

        Raises `WorkbenchError` for prompts that are empty or too long for the model, for settings out of range, and
        when the model returns NaN; `ValueError` when `seeds` is not [len(prompts)][n] of numbers below 2^64;
        `RuntimeError` for a call while another one is under way, in another thread or around `on_finish`.
        """
        if len(seeds) != len(prompts) or any(len(row) != n for row in seeds):
            raise ValueError(f"seeds must be [{len(prompts)}][{n}]")
        wrong = next((seed for row in seeds for seed in row if not 0 <= seed < 2**64), None)
        if wrong is not None:
            raise ValueError(f"a seed is {wrong}: expected 0 to 2^64 - 1")
        self._check(prompts, max_new_tokens, temperature)
        rows = [
            _Row(i, j, prompt, _uniforms(seeds[i][j], max_new_tokens))
            for i, prompt in enumerate(prompts)
            for j in range(n)
        ]
        session = _Session(self.policy, temperature, max_new_tokens, greedy, on_finish)
        with self._alone():
            self._sample(session, rows)
        actions = iter(session.actions[row.prompt_index, row.member] for row in rows)
        return [[next(actions) for _ in range(n)] for _ in prompts]

    @contextmanager
    def _alone(self) -> Iterator[None]:
        mine = object()
        try:
            if self._calls.setdefault("now", mine) is not mine:
                raise RuntimeError(
                    "this generator is sampling already: make one for each thread, or call it afterwards"
                )
            yield
        except BaseException:
            if self._calls.get("now") is mine:
                self._decoder = None  # of its weights, some may be those of before
            raise
        finally:
            if self._calls.get("now") is mine:
                del self._calls["now"]

    def _sample(self, session: _Session, rows: Sequence[_Row]) -> None:
        model = unwrapped(self.policy.model)
        with torch.inference_mode(), evaluating(self.policy.model):
            body = body_of(model)
            if not rows or body is None:
                _decode_by_prompt(session, rows, self.max_rows)
                return
            if self._decoder is None or self._decoder.body is not body:
                self._decoder = Decoder(body)
            _decode_together(session, self._decoder, rows, self._slots(model, rows, session.max_new_tokens))
            self._decoder.end()

    def forget(self) -> None:
        """Drop the prompts that were read: what follows is computed as by a generator that has just been made."""
        if self._decoder is not None:
            self._decoder.kept.clear()

    def _slots(self, model: Any, rows: Sequence[_Row], max_new_tokens: int) -> int:
        """Rows to decode side by side: as many as there are, within `max_rows` and the memory for keys and values.

        Counted is a prompt for each group that they are of, twice: as it was read, and beside the others.
        """
        device = self.policy.device
        budget = torch.cuda.get_device_properties(device).total_memory // 4 if device.type == "cuda" else CACHE_BYTES
        longest = max(len(row.prompt) for row in rows)
        groups, slots, room = set[int](), 0, budget // bytes_per_token(model)
        for row in rows[: self.max_rows]:
            groups.add(row.prompt_index)
            if 2 * longest * len(groups) + max_new_tokens * (slots + 1) > room:
                break
            slots += 1
        return max(1, slots)

    def _check(self, prompts: Sequence[Sequence[int]], max_new_tokens: int, temperature: float) -> None:
        if not 0 < temperature < float("inf"):
            raise WorkbenchError(
                f"temperature={temperature}: expected a number above 0; ask for `greedy` to get the likeliest tokens."
            )
        if max_new_tokens < 1:
            raise WorkbenchError(f"max_completion_tokens={max_new_tokens}: expected at least 1 token to sample.")
        longest = max((len(prompt) for prompt in prompts), default=1)
        limit = self.policy.max_positions
        if limit is not None and longest + max_new_tokens > limit:
            raise WorkbenchError(
                f"a prompt of {longest} tokens and max_completion_tokens={max_new_tokens} exceed the {limit} positions "
                "of the model: lower max_prompt_tokens or max_completion_tokens."
            )
        if any(len(prompt) == 0 for prompt in prompts):
            raise WorkbenchError("a prompt has no tokens: expected at least one, check the chat template.")


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode (which also switches gradient checkpointing off), each module's own mode restored on exit."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _uniforms(seed: int, count: int) -> list[float]:
    return torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).tolist()


def choose(logits: Tensor, uniforms: Tensor, temperature: float, greedy: bool = False) -> tuple[Tensor, Tensor]:
    """One token per row of logits [R, V] by inverse CDF at `uniforms` [R] in [0, 1), and its log-probability.

    Returns ([R] int64, [R] fp32). The distribution is added up by blocks of the vocabulary, and within the one block
    that is drawn from, in fp64 where the device has it; a token of probability 0 is never taken.
    """
    logits = tempered(logits, temperature)
    top, tokens = logits.max(-1, keepdim=True)
    shares = (logits - top).exp_()
    if missing := -logits.shape[-1] % BLOCK:
        shares = functional.pad(shares, (0, missing))
    shares = shares.unflatten(-1, (-1, BLOCK))
    wide = torch.float32 if logits.device.type == "mps" else torch.float64
    sums = shares.sum(-1).to(wide)
    total = top + sums.sum(-1, keepdim=True).log().to(top.dtype)
    if not greedy:
        point = uniforms.to(wide).to(logits.device).unsqueeze(1)
        block, point = _pass(sums, point * sums.sum(-1, keepdim=True))
        inside = shares.gather(1, block.unsqueeze(-1).expand(-1, -1, BLOCK)).squeeze(1).to(wide)
        tokens = (block * BLOCK + _pass(inside, point)[0]).clamp_max(logits.shape[-1] - 1)
    return tokens.squeeze(1), (logits.gather(1, tokens) - total).squeeze(1)


def _pass(weights: Tensor, point: Tensor) -> tuple[Tensor, Tensor]:
    """Where the running sum of weights [R, n] passes `point` [R, 1], and how far the point lies into that weight."""
    reached = weights.cumsum(-1)
    below = torch.nextafter(reached[:, -1:], torch.zeros_like(point))
    point = torch.minimum(point.clamp_min(0), below)
    index = torch.searchsorted(reached, point, right=True).clamp_max(weights.shape[-1] - 1)  # beyond it: NaN
    return index, point - (reached - weights).gather(1, index)


@dataclass(eq=False, slots=True)
class _Row:
    """One action being sampled."""

    prompt_index: int
    member: int
    prompt: Sequence[int]
    uniforms: list[float]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Positions whose keys and values are known: all but the newest token."""
        return len(self.prompt) + len(self.tokens) - 1


@dataclass(eq=False)
class _Session:
    """One call of `generate`: its settings, and the actions finished so far."""

    policy: Policy
    temperature: float
    max_new_tokens: int
    greedy: bool
    on_finish: OnFinish | None
    actions: dict[tuple[int, int], Action] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.parts = split_head(self.policy.model)
        self.stop = frozenset(self.policy.stop_ids)

    def logits(self, **inputs: Any) -> Tensor:
        """Logits [B, V] after the last position, filling the cache given."""
        if self.parts is None:
            return self.policy.model(use_cache=True, logits_to_keep=1, **inputs).logits[:, -1]
        backbone, head = self.parts
        return head(backbone(use_cache=True, **inputs).last_hidden_state[:, -1])

    def extend(self, rows: Sequence[_Row], logits: Tensor) -> list[bool]:
        """Sample one token for each row from logits [len(rows), V]; True where that ended the row."""
        uniforms = torch.tensor([row.uniforms[len(row.tokens)] for row in rows], dtype=torch.float64)
        tokens, logprobs = choose(logits, uniforms, self.temperature, self.greedy)
        ended = []
        for row, token, logprob in zip(rows, tokens.tolist(), logprobs.tolist(), strict=True):
            if logprob != logprob or logprob == float("-inf"):
                raise WorkbenchError(
                    f"the policy returned NaN or infinite logits at version {self.policy.version}: its weights have "
                    "diverged, train again with a lower learning_rate, from the start or from the policy of an earlier "
                    "checkpoint (policy=runs/NAME/checkpoints/STEP/policy)."
                )
            row.tokens.append(token)
            row.logprobs.append(logprob)
            ended.append(token in self.stop or len(row.tokens) >= self.max_new_tokens)
        for row, end in zip(rows, ended, strict=True):
            if end:
                self._finish(row)
        return ended

    def _finish(self, row: _Row) -> None:
        action = Action(
            text=self.policy.decode(row.tokens),
            token_ids=tuple(row.tokens),
            sampler_logprobs=tuple(row.logprobs),
            policy_version=self.policy.version,
            stop_reason=StopReason.EOS if row.tokens[-1] in self.stop else StopReason.LENGTH,
        )
        self.actions[row.prompt_index, row.member] = action
        if self.on_finish is not None:
            self.on_finish(row.prompt_index, row.member, action)

    def tensor(self, values: Sequence[Any]) -> Tensor:
        return torch.tensor(values, device=self.policy.device)


def _decode_together(session: _Session, decoder: Decoder, rows: Sequence[_Row], capacity: int) -> None:
    """Continuous batching: a finished row's slot is closed by the last row, free slots are filled from the queue."""
    queue, active = deque(rows), list[_Row]()
    longest = max(len(row.prompt) for row in rows) + session.max_new_tokens
    decoder.begin(capacity, session.max_new_tokens, longest)
    read: dict[int, Read] = {}
    shown: tuple[list[int], Prompts] | None = None
    seating: Seating | None = None
    while queue or active:
        free = capacity - len(active)
        if queue and (not active or free >= max(1, capacity // 4)):
            new = [queue.popleft() for _ in range(min(free, len(queue)))]
            _read_prompts(decoder, new, read)
            ended = session.extend(new, torch.stack([read[row.prompt_index].logits for row in new]))
            for row, end in zip(new, ended, strict=True):
                if not end:
                    decoder.clear(len(active))
                    active.append(row)
            seating = None
            continue
        if seating is None:
            groups: dict[int, list[int]] = {}
            for slot, row in enumerate(active):
                groups.setdefault(row.prompt_index, []).append(slot)
            if shown is None or shown[0] != [*groups]:
                shown = [*groups], gather([read[index] for index in groups])
                wanted = {*groups, *(row.prompt_index for row in queue)}
                read = {index: one for index, one in read.items() if index in wanted}
            seating = seat([*groups.values()], session.policy.device)
        assert shown is not None
        if _step(session, decoder, active, shown[1], seating):
            seating = None


def _read_prompts(decoder: Decoder, new: Sequence[_Row], read: dict[int, Read]) -> None:
    """Prefill the prompts of new rows that have not been read yet, a bounded number of tokens at a time."""
    unread = {row.prompt_index: row.prompt for row in new if row.prompt_index not in read}
    order = sorted(unread, key=lambda index: tuple(unread[index]))  # those that begin alike together
    while order:
        part = [order.pop()]
        while order and sum(len(unread[index]) for index in part) + len(unread[order[-1]]) <= PREFILL_TOKENS:
            part.append(order.pop())
        read.update(zip(part, decoder.read([unread[index] for index in part]), strict=True))


def _step(session: _Session, decoder: Decoder, active: list[_Row], prompts: Prompts, seating: Seating) -> bool:
    """One token for every active row; rows that end leave, the last row taking the slot. Whether any did."""
    ids, positions = session.tensor([(row.tokens[-1], row.length) for row in active]).unbind(1)
    sampled = [len(row.tokens) - 1 for row in active]
    ended = session.extend(active, decoder.step(ids, positions, sampled, prompts, seating))
    for slot in reversed([slot for slot, end in enumerate(ended) if end]):
        last = active.pop()
        if slot < len(active):
            decoder.move(len(active), slot)
            active[slot] = last
    return any(ended)


def _decode_by_prompt(session: _Session, rows: Sequence[_Row], max_rows: int) -> None:
    """For any other architecture: the members of one prompt at a time, equally long, in transformers' own cache."""
    groups: dict[int, list[_Row]] = {}
    for row in rows:
        groups.setdefault(row.prompt_index, []).append(row)
    parts = [group[i : i + max_rows] for group in groups.values() for i in range(0, len(group), max_rows)]
    for part in parts:
        cache = DynamicCache(config=unwrapped(session.policy.model).config.get_text_config())
        logits = session.logits(input_ids=session.tensor([part[0].prompt]), cache=cache).expand(len(part), -1)
        cache.reorder_cache(session.tensor([0] * len(part)))
        active = part
        while active:
            ended = session.extend(active, logits)
            if any(ended):
                alive = [i for i, end in enumerate(ended) if not end]
                active = [active[i] for i in alive]
                if not active:
                    break
                cache.reorder_cache(session.tensor(alive))
            ids = session.tensor([row.tokens[-1] for row in active]).unsqueeze(1)
            logits = session.logits(input_ids=ids, cache=cache)
