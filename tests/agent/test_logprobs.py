"""Scores of completions against the plain way of computing them: values, gradients, masks and memory."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from workbench.agent import logprobs as scoring
from workbench.agent.logprobs import completion_logprobs, split_head
from workbench.agent.policy import Policy

Row = tuple[list[int], list[int]]
MakePolicy = Callable[..., Policy]
ROWS: list[Row] = [
    ([5, 6, 7], [8, 9, 10, 11]),
    (list(range(40, 60)), [3]),
    ([100], [101, 102, 103, 104, 105, 106, 107]),
    ([9, 9, 9, 9], []),
]
FAMILIES = ["llama", "gpt2", "qwen3", "mistral", "gemma2", "cohere", "granite", "bloom", "opt"]
PLAIN = {"llama", "gpt2", "qwen3", "mistral", "bloom", "opt"}


def family(kind: str) -> dict[str, Any]:
    """Settings under which a family's peculiarity shows at this size."""
    return {
        "gemma2": {"final_logit_softcapping": 2.0, "sliding_window": 4, "head_dim": 8},
        "cohere": {"logit_scale": 0.3},
        "granite": {"logits_scaling": 3.0},
        "mistral": {"sliding_window": 4},
        "opt": {"ffn_dim": 64, "word_embed_proj_dim": 32, "dropout": 0.0},
        "gpt2": {"n_positions": 256, "attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1},
    }.get(kind, {})


def naive(model: Any, rows: Sequence[Row], temperature: float) -> list[torch.Tensor]:
    """One row at a time, the whole log-softmax, then the completion's entries."""
    values = []
    for prompt, completion in rows:
        logits = model(input_ids=torch.tensor([prompt + completion]), use_cache=False).logits[0].float()
        logs = torch.log_softmax(logits / temperature, dim=-1)
        values.append(
            torch.stack([logs[len(prompt) - 1 + i, token] for i, token in enumerate(completion)])
            if completion
            else torch.zeros(0)
        )
    return values


@pytest.fixture
def of_kind(make_policy: MakePolicy, build_model: Callable[..., Path], tmp_path: Path) -> Callable[..., Policy]:
    def build(kind: str, **settings: Any) -> Policy:
        return make_policy(policy=str(build_model(tmp_path / kind, kind=kind, **family(kind))), **settings)

    return build


# --- values and gradients


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.5])
@pytest.mark.parametrize("kind", FAMILIES)
def test_equals_the_plain_way(of_kind: Callable[..., Policy], kind: str, temperature: float) -> None:
    policy = of_kind(kind)
    with torch.no_grad():
        values, mask, entropy = completion_logprobs(policy.model, ROWS, temperature, chunk_tokens=3)
        expected = naive(policy.model, ROWS, temperature)
    assert entropy is None
    assert values.shape == mask.shape == (4, 7)
    assert values.dtype == torch.float32
    assert mask.sum(1).tolist() == [4, 1, 7, 0]
    assert (values[~mask] == 0).all()
    for row, keep, wanted in zip(values, mask, expected, strict=True):
        assert torch.allclose(row[keep], wanted, atol=1e-5)
    assert (split_head(policy.model) is not None) == (kind in PLAIN)


@pytest.mark.parametrize("chunk_tokens", [1, 5, None])
@pytest.mark.parametrize("adapter", ["full", "lora"])
@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_gradients_equal_the_plain_way(
    of_kind: Callable[..., Policy], kind: str, adapter: str, chunk_tokens: int | None
) -> None:
    policy = of_kind(kind, adapter=adapter)
    weights = torch.linspace(-1, 1, 12)
    values, mask, _ = completion_logprobs(policy.model, ROWS, 0.7, chunk_tokens=chunk_tokens, entropy=True)
    (values[mask] * weights).sum().backward()
    gradients = [parameter.grad.clone() for parameter in policy.trainable()]
    policy.model.zero_grad()
    (torch.cat(naive(policy.model, ROWS, 0.7)) * weights).sum().backward()
    scale = max(parameter.grad.abs().max() for parameter in policy.trainable())
    for gradient, parameter in zip(gradients, policy.trainable(), strict=True):
        assert (gradient - parameter.grad).abs().max() < 1e-5 * scale


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.tuples(st.lists(st.integers(0, 319), min_size=1, max_size=30), st.lists(st.integers(0, 319), max_size=20)),
        min_size=1,
        max_size=6,
    )
)
def test_a_row_does_not_depend_on_its_neighbours(tiny_policy: Policy, rows: list[Row]) -> None:
    with torch.no_grad():
        together, mask, _ = completion_logprobs(tiny_policy.model, rows, 1.0)
        for index, row in enumerate(rows):
            alone = completion_logprobs(tiny_policy.model, [row], 1.0)[0][0]
            assert alone.shape == (len(row[1]),)
            assert torch.allclose(together[index][mask[index]], alone, atol=1e-4)


def test_bf16_scores_are_fp32_and_close(make_policy: MakePolicy, tiny_policy: Policy) -> None:
    half = make_policy(dtype="bfloat16")
    values = completion_logprobs(half.model, ROWS, 1.0)[0]
    assert values.dtype == torch.float32
    assert (values - completion_logprobs(tiny_policy.model, ROWS, 1.0)[0]).abs().max() < 0.1


# --- masks come from lengths


def test_filler_changes_nothing(tiny_policy: Policy) -> None:
    eos = tiny_policy.tokenizer.eos_token_id
    results = [completion_logprobs(tiny_policy.model, ROWS, 1.0, pad_id=pad)[0] for pad in (0, eos, 300)]
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_sampled_eos_is_trained_though_it_is_the_filler(tiny_policy: Policy) -> None:
    eos = tiny_policy.tokenizer.eos_token_id
    rows: list[Row] = [([7, 8], [5, 6, eos]), ([7, 8], [5, eos, 6, 6, 6, 6])]
    values, mask, _ = completion_logprobs(tiny_policy.model, rows, 1.0, pad_id=eos)
    assert mask.tolist() == [[True] * 3 + [False] * 3, [True] * 6]
    gradient = torch.autograd.grad(values[0, 2], tiny_policy.model.get_output_embeddings().weight)[0]
    assert gradient[eos].abs().sum() > 0


def test_lengths_are_those_of_the_rows(tiny_policy: Policy) -> None:
    _, mask, _ = completion_logprobs(tiny_policy.model, [([5], [6, 7]), ([5], [6, 7, 8, 9, 10])], 1.0)
    lengths = mask.sum(1).float()
    assert (lengths.mean(), lengths.min(), lengths.max()) == (3.5, 2, 5)


def test_empty_completions_score_nothing(tiny_policy: Policy) -> None:
    values, mask, entropy = completion_logprobs(tiny_policy.model, [([5], []), ([6, 7], [])], 1.0, entropy=True)
    assert entropy is not None
    assert values.shape == mask.shape == entropy.shape == (2, 0)


@pytest.mark.parametrize("rows", [[([1, 2], [3, 4]), ([5], [])], [([1, 2], [])]], ids=str)
def test_another_default_dtype_changes_nothing(tiny_policy: Policy, rows: list[Row]) -> None:
    wanted = completion_logprobs(tiny_policy.model, rows, 1.0, entropy=True)
    torch.set_default_dtype(torch.float64)
    try:
        found = completion_logprobs(tiny_policy.model, rows, 1.0, entropy=True)
    finally:
        torch.set_default_dtype(torch.float32)
    for one, other in zip(found, wanted, strict=True):
        assert one is not None
        assert other is not None
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


def test_empty_prompt_is_refused(tiny_policy: Policy) -> None:
    with pytest.raises(ValueError, match="empty prompt"):
        completion_logprobs(tiny_policy.model, [([], [5])], 1.0)


# --- entropy


class Head(nn.Module):
    """A causal LM with a fixed table of logits per token: no attention, any vocabulary."""

    def __init__(self, vocabulary: int, width: int = 8) -> None:
        super().__init__()
        self.base_model = Table(vocabulary, width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(vocab_size=vocabulary))

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def forward(self, input_ids: torch.Tensor, use_cache: bool = False) -> SimpleNamespace:
        return SimpleNamespace(logits=self.lm_head(self.base_model(input_ids).last_hidden_state))


class Table(nn.Module):
    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(64, width)

    def forward(self, input_ids: torch.Tensor, use_cache: bool = False) -> SimpleNamespace:
        return SimpleNamespace(last_hidden_state=self.table(input_ids % 64))


def test_entropy_of_uniform_logits() -> None:
    model = Head(64)
    nn.init.zeros_(model.lm_head.weight)
    rows: list[Row] = [([5, 6, 7], [8, 9, 10, 11]), ([1], [2])]
    values, mask, entropy = completion_logprobs(model, rows, 0.5, entropy=True)
    assert entropy is not None
    assert torch.allclose(entropy[mask], torch.tensor(math.log(64)))
    assert torch.allclose(values[mask], torch.tensor(-math.log(64)))
    assert (entropy[~mask] == 0).all()
    assert not entropy.requires_grad


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_entropy_is_of_the_sampled_distribution(tiny_policy: Policy, temperature: float) -> None:
    rows = ROWS[:1]
    _, mask, entropy = completion_logprobs(tiny_policy.model, rows, temperature, entropy=True)
    prompt, completion = rows[0]
    with torch.no_grad():
        logits = tiny_policy.model(input_ids=torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
    expected = torch.distributions.Categorical(logits=logits / temperature).entropy()
    assert entropy is not None
    assert torch.allclose(entropy[mask], expected, atol=1e-5)


# --- memory


class Live(TorchDispatchMode):
    """Bytes of tensors made while it is on: now and at the peak."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.seen: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                if storage._cdata not in self.seen:
                    self.seen.add(storage._cdata)
                    self.now += storage.nbytes()
                    self.peak = max(self.peak, self.now)
                    weakref.finalize(storage, self._free, storage._cdata, storage.nbytes())
        return result

    def _free(self, key: int, size: int) -> None:
        self.seen.discard(key)
        self.now -= size


def peak(model: nn.Module, length: int, *, gradient: bool = False) -> int:
    row = ([1, 2], list(range(length)))
    with Live() as live, torch.set_grad_enabled(gradient):
        values = completion_logprobs(model, [row], 0.9, entropy=True)[0]
        if gradient:
            values.sum().backward()
    model.zero_grad()
    return live.peak


def test_no_tensor_of_length_times_vocabulary() -> None:
    vocabulary, length = 150_000, 512
    model = Head(vocabulary)
    full = 4 * vocabulary * length
    assert peak(model, length) < full
    assert peak(model, length, gradient=True) < 2 * full
    rows = [([1, 2], list(range(32)))]
    with torch.no_grad():
        values = completion_logprobs(model, rows, 0.9, chunk_tokens=5)[0][0]
        assert torch.allclose(values, naive(model, rows, 0.9)[0], atol=1e-5)


def test_peak_grows_with_the_chunk_not_with_the_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "CHUNK_ELEMENTS", 2**19)
    model = Head(8192)
    split_head(model)
    assert peak(model, 1024) < 1.5 * peak(model, 256)
    assert peak(model, 1024, gradient=True) < 1.5 * peak(model, 256, gradient=True)
    monkeypatch.setattr(scoring, "CHUNK_ELEMENTS", 2**21)
    assert peak(model, 1024) > 2 * 4 * 2**20


@pytest.mark.parametrize("kind", ["gemma2", "granite"])
def test_a_whole_model_runs_on_few_rows_at_a_time(
    of_kind: Callable[..., Policy], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its logits for all rows at once are what a large vocabulary has no memory for."""
    policy = of_kind(kind)
    rows = [*ROWS, ROWS[0]]
    shapes: list[tuple[int, ...]] = []
    policy.model.register_forward_hook(lambda module, args, output: shapes.append(tuple(output.logits.shape)))

    def results() -> tuple[torch.Tensor, list[torch.Tensor]]:
        policy.model.zero_grad()
        values, _, entropy = completion_logprobs(policy.model, rows, 0.7, entropy=True)
        (values * torch.linspace(-1, 1, values.numel()).view_as(values)).sum().backward()
        assert entropy is not None
        return torch.cat([values.detach(), entropy]), [p.grad.clone() for p in policy.trainable()]

    values, gradients = results()
    assert max(shape[0] for shape in shapes) == 5
    monkeypatch.setattr(scoring, "WHOLE_ELEMENTS", 2 * 21 * shapes[-1][-1])
    shapes.clear()
    few, few_gradients = results()
    assert {shape[0] for shape in shapes} == {1, 2}
    assert torch.allclose(few, values, atol=1e-5)
    scale = max(gradient.abs().max() for gradient in gradients)
    for one, other in zip(gradients, few_gradients, strict=True):
        assert (one - other).abs().max() < 1e-5 * scale


# --- gradient checkpointing with LoRA


def test_checkpointing_changes_no_gradient(make_policy: MakePolicy) -> None:
    gradients = []
    for on in (False, True):
        policy = make_policy(adapter="lora")
        policy.set_checkpointing(on)
        assert policy.model.training == on
        completion_logprobs(policy.model, ROWS, 1.0)[0].sum().backward()
        gradients.append({name: parameter.grad for name, parameter in policy._trainable()})
    plain, checkpointed = gradients
    assert all(plain[name].abs().max() > 0 for name in plain if "lora_B" in name)
    for name, gradient in plain.items():
        assert torch.allclose(gradient, checkpointed[name], atol=1e-5)
    policy.set_checkpointing(False)
    assert not policy.model.training


def test_looking_at_the_head_restores_the_mode(make_policy: MakePolicy) -> None:
    policy = make_policy(adapter="lora")
    policy.set_checkpointing(True)
    assert split_head(policy.model) is not None
    assert all(module.training for module in policy.model.modules())
