"""Train the tiny policy from scratch on the corpus: one prompt, several scripts, one forward pass.

A row holds a prompt once and its scripts after it; a mask lets each script see the prompt and itself only, and its
positions go on from the prompt's end, so the model sees what it will see when it acts.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from workbench.learning.warmstart.corpus import Pair
from workbench.learning.warmstart.tokenizer import ASSISTANT

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast


@dataclass(frozen=True, slots=True)
class Recipe:
    """Sizes and rates of the training; everything that the result depends on besides the corpus."""

    vocabulary: int = 1536
    width: int = 256
    layers: int = 5
    heads: int = 4
    hidden: int = 640
    batch_tokens: int = 4096
    tokens: int = 6_500_000
    """Padded tokens of the whole training."""
    rate: float = 3e-3
    muon_rate: float = 0.02
    warmup: float = 0.03
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """Token ids of a prompt (with the BOS and the user mark) and of its scripts (assistant mark … EOS)."""

    kind: str
    prompt: tuple[int, ...]
    scripts: tuple[tuple[int, ...], ...]
    repeated: tuple[int, int] = (0, 0)
    """Tokens of the prompt (start, end) whose names stand before them: learnt too, as lessons in copying."""

    @property
    def length(self) -> int:
        return len(self.prompt) + sum(map(len, self.scripts))


def encode(pairs: Sequence[Pair], tokenizer: PreTrainedTokenizerFast) -> list[Row]:
    """Rows of token ids; the prompt goes through the chat template as it will when the policy acts."""
    mark = tokenizer.convert_tokens_to_ids(ASSISTANT)
    rows = []
    for pair in pairs:
        chat = [{"role": "user", "content": pair.prompt}]
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=False)
        prompt = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        scripts = tuple(
            (mark, *tokenizer.encode(script, add_special_tokens=False), tokenizer.eos_token_id)
            for script in pair.scripts
        )
        rows.append(Row(pair.kind, tuple(prompt.input_ids), scripts, _repeated(text, prompt.offset_mapping)))
    return rows


def _repeated(text: str, offsets: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """The token span of the lines `Id:` and `Target:`, whose names were in the lines above."""
    start, end = text.find("\nId: '"), text.find("\nColumns:")
    if start < 0 or end < start:
        return 0, 0
    inside = [i for i, (left, right) in enumerate(offsets) if left > start and right <= end]
    return (inside[0], inside[-1] + 1) if inside else (0, 0)


def batches(rows: Sequence[Row], recipe: Recipe) -> Iterator[list[Row]]:
    """Endless batches of about `batch_tokens` padded tokens, of rows of similar length, in an order set by the seed."""
    rng = random.Random(f"order {recipe.seed}")
    while True:
        order = rng.sample(rows, len(rows))
        for start in range(0, len(order), 1024):
            yield from _bucketed(order[start : start + 1024], recipe.batch_tokens, rng)


def _bucketed(rows: list[Row], budget: int, rng: random.Random) -> list[list[Row]]:
    found: list[list[Row]] = [[]]
    for row in sorted(rows, key=lambda row: row.length):
        if found[-1] and (len(found[-1]) + 1) * row.length > budget:
            found.append([])
        found[-1].append(row)
    rng.shuffle(found)
    return found


def collate(rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """ids [R, L], positions [R, L], mask [R, 1, L, L] (True = may attend), labels [R, L] (next token, or -100)."""
    length = max(row.length for row in rows)
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    positions = torch.zeros_like(ids)
    labels = torch.full_like(ids, -100)
    segment = torch.full_like(ids, -1)
    for r, row in enumerate(rows):
        at = len(row.prompt)
        ids[r, :at] = torch.tensor(row.prompt)
        positions[r, :at] = torch.arange(at)
        segment[r, :at] = 0
        first, last = row.repeated
        labels[r, first : max(first, last - 1)] = ids[r, first + 1 : max(first + 1, last)]
        for k, script in enumerate(row.scripts, start=1):
            end = at + len(script)
            ids[r, at:end] = torch.tensor(script)
            positions[r, at:end] = torch.arange(len(script)) + len(row.prompt)
            segment[r, at:end] = k
            labels[r, at : end - 1] = ids[r, at + 1 : end]
            at = end
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    same = segment[:, :, None] == segment[:, None, :]
    to_prompt = (segment[:, None, :] == 0) & (segment[:, :, None] > 0)
    return ids, positions, ((same | to_prompt) & causal)[:, None], labels


def make_model(recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A fresh Llama of the recipe's size, fp32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(recipe.seed)
    config = LlamaConfig(
        vocab_size=recipe.vocabulary,
        hidden_size=recipe.width,
        intermediate_size=recipe.hidden,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.heads,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config)


def loss_of(model: LlamaForCausalLM, rows: Sequence[Row]) -> tuple[torch.Tensor, int]:
    """Mean negative log-likelihood of the script tokens (nats) and their number."""
    ids, positions, mask, labels = collate(rows)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = model.model(
            input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=False
        ).last_hidden_state
        chosen = labels != -100
        logits = model.lm_head(hidden[chosen])
    return torch.nn.functional.cross_entropy(logits.float(), labels[chosen]), int(chosen.sum())


def optimizers(model: LlamaForCausalLM, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the blocks, AdamW for the embedding and the norms."""
    matrices = [
        p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name and "lm_head" not in name
    ]
    chosen = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in chosen]
    return [
        torch.optim.Muon(matrices, lr=recipe.muon_rate, weight_decay=0.01, momentum=0.95),
        torch.optim.AdamW(others, lr=recipe.rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def rate_at(done: float, warmup: float) -> float:
    """Share of the full learning rate after the share `done` of the training: warm-up, then a cosine to 0.02."""
    if done < warmup:
        return done / warmup
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, (done - warmup) / (1 - warmup))))


def train(
    rows: Sequence[Row],
    tokenizer: PreTrainedTokenizerFast,
    recipe: Recipe,
    *,
    state: Path | None = None,
    save_every_s: float = 240.0,
    report: Callable[[str], None] = print,
) -> LlamaForCausalLM:
    """Train for `recipe.tokens` padded tokens; goes on from `state` when that file exists."""
    model = make_model(recipe, tokenizer)
    rules = optimizers(model, recipe)
    step, seen = _restore(state, model, rules)
    began, began_seen, saved = time.monotonic(), seen, time.monotonic()
    source = batches(rows, recipe)
    for _ in range(step):
        next(source)
    average = math.nan
    while seen < recipe.tokens:
        batch = next(source)
        share = rate_at(seen / recipe.tokens, recipe.warmup)
        for rule, top in zip(rules, (recipe.muon_rate, recipe.rate), strict=True):
            rule.param_groups[0]["lr"] = top * share
        loss, _ = loss_of(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for rule in rules:
            rule.step()
            rule.zero_grad(set_to_none=True)
        average = loss.item() if math.isnan(average) else 0.95 * average + 0.05 * loss.item()
        step, seen = step + 1, seen + len(batch) * max(row.length for row in batch)
        if step % 20 == 0:
            speed = (seen - began_seen) / (time.monotonic() - began)
            left = (recipe.tokens - seen) / speed
            report(
                f"step {step}  tokens {seen / 1e6:.2f} M  loss {average:.4f}  {speed:.0f} tokens/s"
                f"  left {left / 60:.1f} min"
            )
        if time.monotonic() - saved > save_every_s:
            saved = time.monotonic()
            _store(state, model, rules, step, seen)
    _store(state, model, rules, step, seen)
    return model


def _restore(state: Path | None, model: torch.nn.Module, rules: Sequence[torch.optim.Optimizer]) -> tuple[int, int]:
    if state is None or not state.exists():
        return 0, 0
    kept = torch.load(state, weights_only=True)
    model.load_state_dict(kept["model"])
    for rule, values in zip(rules, kept["rules"], strict=True):
        rule.load_state_dict(values)
    return kept["step"], kept["seen"]


def _store(
    state: Path | None, model: torch.nn.Module, rules: Sequence[torch.optim.Optimizer], step: int, seen: int
) -> None:
    if state is None:
        return
    aside = state.with_suffix(".new")
    torch.save(
        {"model": model.state_dict(), "rules": [rule.state_dict() for rule in rules], "step": step, "seen": seen}, aside
    )
    aside.replace(state)


def save_policy(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Weights in bf16 safetensors, config and tokenizer in Hugging Face format."""
    import copy

    from workbench.agent.loading import quiet

    folder.mkdir(parents=True, exist_ok=True)
    with quiet():
        copy.deepcopy(model).to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
