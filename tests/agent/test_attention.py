"""The shared-prefix forward against the plain one of transformers: values, gradients, families, neighbours, cost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from workbench.agent import attention, functions, llama
from workbench.agent.attention import shares_prefix, states
from workbench.agent.logprobs import completion_logprobs
from workbench.agent.policy import Policy
from workbench.agent.prefix import pack

MakePolicy = Callable[..., Policy]
FAMILIES = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 16},
    "mistral": {"sliding_window": None},
    "gpt2": {"n_positions": 256},
}
OTHERS: dict[str, dict[str, Any]] = {
    "gemma2": {"final_logit_softcapping": 2.0, "sliding_window": 4, "head_dim": 8},
    "mistral": {"sliding_window": 4},
    "bloom": {},
    "granite": {"logits_scaling": 3.0},
}
SHARED = range(100, 130)
SECOND = range(130, 155)


def groups(sizes: list[int]) -> list[tuple[list[int], list[int]]]:
    """Ragged prompts of about 20 tokens, each with some ragged completions, the first of them empty."""
    generator = torch.Generator().manual_seed(len(sizes))
    rows = []
    for number, size in enumerate(sizes):
        prompt = torch.randint(0, 256, (17 + 5 * number,), generator=generator).tolist()
        for member in range(size):
            rows.append((prompt, torch.randint(0, 256, (3 * member % 11,), generator=generator).tolist()))
    return rows


TREE = [
    ([*SHARED], [*range(5, 14)]),
    ([*SHARED], [*range(6, 10)]),
    ([*SHARED, *SECOND], [1, 2, 3]),
    ([*SHARED, *SECOND], [3, 2, 1, 0]),
    ([*SHARED, *SECOND, 3, 2, 1, 0, *range(30, 50)], [9]),
    ([*SHARED, *SECOND, 3, 2, 1, 0, *range(30, 50)], [8, 7, 6]),
]
"""Stages of two trajectories that extend one another."""


@pytest.fixture
def of_kind(make_policy: MakePolicy, build_model: Callable[..., Path], tmp_path: Path) -> Callable[..., Policy]:
    def build(kind: str, shape: dict[str, Any], **settings: Any) -> Policy:
        return make_policy(policy=str(build_model(tmp_path / kind, kind=kind, **shape)), **settings)

    return build


def _both_ways(policy: Policy, rows: Any) -> list[tuple[Tensor, Tensor, list[Tensor]]]:
    """(log-probabilities, entropies, gradients), shared and plain."""
    assert shares_prefix(policy.model)
    inner = policy.model.get_base_model() if policy.adapter == "lora" else policy.model
    found = []
    for name in (attention.NAME, "sdpa"):
        inner.set_attn_implementation(name)
        policy.model.zero_grad()
        values, mask, entropy = completion_logprobs(policy.model, rows, 0.8, entropy=True)
        weights = torch.linspace(-1, 1, values.numel()).view_as(values)
        (values * weights)[mask].sum().backward()
        gradients = [parameter.grad.clone() for parameter in policy.trainable()]
        found.append((values.detach(), entropy, gradients))
    return found


def _assert_equal(shared: Any, plain: Any) -> None:
    assert (shared[0] - plain[0]).abs().max() < 1e-4
    assert (shared[1] - plain[1]).abs().max() < 1e-4
    scale = max(gradient.abs().max() for gradient in plain[2])
    for one, other in zip(shared[2], plain[2], strict=True):
        assert (one - other).abs().max() < 1e-4 * scale


@pytest.mark.parametrize("sizes", [[1], [2, 3], [16], [1, 8, 4]], ids=str)
@pytest.mark.parametrize("kind", FAMILIES)
def test_groups_equal_the_plain_forward(of_kind: Callable[..., Policy], kind: str, sizes: list[int]) -> None:
    rows = groups(sizes)
    if not any(completion for _, completion in rows):
        rows[0] = (rows[0][0], [1, 2, 3])
    _assert_equal(*_both_ways(of_kind(kind, FAMILIES[kind]), rows))


@pytest.mark.parametrize("adapter", ["full", "lora"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_trees_of_stages_equal_the_plain_forward(
    of_kind: Callable[..., Policy], adapter: str, checkpointing: bool
) -> None:
    policy = of_kind("llama", {}, adapter=adapter)
    for parameter in policy.trainable():
        parameter.data.add_(torch.linspace(-0.05, 0.05, parameter.numel()).view_as(parameter))
    policy.set_checkpointing(checkpointing)
    _assert_equal(*_both_ways(policy, TREE))


@pytest.mark.parametrize("kind", OTHERS)
def test_other_families_take_the_plain_path_and_say_so(
    of_kind: Callable[..., Policy], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING"):
        policy = of_kind(kind, OTHERS[kind])
    shares = shares_prefix(policy.model)
    assert shares != ("computes each prompt for every completion" in caplog.text)
    assert not shares or kind == "granite", "its logits are scaled, its attention is plain"
    values, mask, _ = completion_logprobs(policy.model, TREE, 1.0)
    assert torch.isfinite(values[mask]).all()


def test_neighbours_change_nothing(of_kind: Callable[..., Policy]) -> None:
    policy = of_kind("llama", {})
    with torch.no_grad():
        together = completion_logprobs(policy.model, TREE, 1.0)[0]
        for number, row in enumerate(TREE):
            alone = completion_logprobs(policy.model, [row], 1.0)[0][0]
            assert (together[number, : len(row[1])] - alone).abs().max() < 1e-4


@pytest.mark.parametrize("kind", ["llama", "mistral", "gpt2"])
def test_the_cost_is_that_of_distinct_tokens(
    of_kind: Callable[..., Policy], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens that go through a layer: of 8 completions of one prompt, the prompt and what is new."""
    policy = of_kind(kind, FAMILIES[kind])
    counts: list[int] = []

    def counting(queries: Tensor, *rest: Any) -> Any:
        counts.append(queries.shape[2])
        return plain(queries, *rest)

    plain = attention.attend
    monkeypatch.setattr(attention, "attend", counting)
    monkeypatch.setattr(functions, "attend", counting)
    prompt, seen = [*range(64)], []
    llama.body_of(policy.model)  # tries some tokens
    with torch.no_grad():
        for size in (1, 8):
            counts.clear()
            completion_logprobs(policy.model, [(prompt, [member, 1, 2, 3]) for member in range(size)], 1.0)
            seen.append(set(counts))
    assert seen == [{64 + 3}, {64 + 8 * 3}], "the last token of a completion predicts nothing"


def test_the_backbone_itself_takes_a_forest(of_kind: Callable[..., Policy]) -> None:
    model = of_kind("llama", {}).model
    sequences = [[*prompt, *completion] for prompt, completion in TREE]
    forest = pack(sequences)
    with torch.no_grad():
        found = states(model.base_model, forest)
        for place, sequence in zip(forest.places, sequences, strict=True):
            plain = model.base_model(input_ids=torch.tensor([sequence]), use_cache=False).last_hidden_state[0]
            assert (found[place] - plain).abs().max() < 1e-4


def test_merged_gradients_by_finite_differences() -> None:
    forest = pack([[*range(6), 1, 2], [*range(6), 3], [*range(3), 9]], min_shared=2)
    generator = torch.Generator().manual_seed(0)
    shapes = ((4, len(forest.ids), 8), (2, len(forest.ids), 8), (2, len(forest.ids), 8))
    inputs = [torch.randn(1, *shape, generator=generator, dtype=torch.float64, requires_grad=True) for shape in shapes]
    assert torch.autograd.gradcheck(
        lambda *tensors: attention._ForestAttention.apply(*tensors, forest.nodes, 0.35), inputs, atol=1e-6
    )
