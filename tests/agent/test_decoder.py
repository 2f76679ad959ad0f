"""Decoding by hand against the model itself: projections, adapters, families; nothing of the model is touched."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from peft import LoraConfig
from torch import nn

from workbench.agent import layout
from workbench.agent.decoder import Decoder, Kept, Read, _scores, gather, seat
from workbench.agent.generate import HFGenerator
from workbench.agent.layout import Sampled, laid_out
from workbench.agent.llama import Projection, body_of
from workbench.agent.logprobs import completion_logprobs
from workbench.agent.policy import Policy
from workbench.agent.prefix import common

MakePolicy = Callable[..., Policy]
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, all heads alike": ("llama", {"num_key_value_heads": 4}),
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, stretched": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 16}),
}
PROMPTS = [[*range(5, 40)], [*range(5, 30), 77, 78], [9]]


@pytest.fixture
def of_kind(make_policy: MakePolicy, build_model: Callable[..., Path], tmp_path: Path) -> Callable[..., Policy]:
    def build(name: str, **settings: Any) -> Policy:
        kind, shape = FAMILIES[name]
        policy = make_policy(policy=str(build_model(tmp_path / kind, kind=kind, **shape)), **settings)
        with torch.no_grad():  # an adapter that does something
            for number, parameter in enumerate(policy.trainable()):
                parameter.add_(torch.linspace(-0.1, 0.1, parameter.numel()).roll(number).view_as(parameter))
        return policy

    return build


@pytest.mark.parametrize("adapter", ["full", "lora"])
@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_sampled_scores_as_recorded(of_kind: Callable[..., Policy], name: str, adapter: str) -> None:
    policy = of_kind(name, adapter=adapter)
    inner = policy.model.get_base_model() if adapter == "lora" else policy.model
    assert body_of(policy.model) is not None
    before = {key: tensor.clone() for key, tensor in policy.model.state_dict().items()}
    seeds = [[10 * prompt + member for member in range(4)] for prompt in range(3)]
    actions = HFGenerator(policy, max_rows=5).generate(PROMPTS, 4, temperature=1.2, max_new_tokens=9, seeds=seeds)
    rows = [
        (prompt, list(action.token_ids)) for prompt, group in zip(PROMPTS, actions, strict=True) for action in group
    ]
    inner.set_attn_implementation("sdpa")
    with torch.no_grad():
        values, mask, _ = completion_logprobs(policy.model, rows, 1.2)
    recorded = torch.tensor([value for group in actions for action in group for value in action.sampler_logprobs])
    assert (values[mask] - recorded).abs().max() < 1e-4
    assert all(torch.equal(before[key], tensor) for key, tensor in policy.model.state_dict().items())


def test_in_bf16_a_small_adapter_is_not_rounded_away(of_kind: Callable[..., Policy]) -> None:
    """Each of its products is below half a step of the weight it would be merged into."""
    layer = of_kind("llama", adapter="lora", dtype="bfloat16").model.get_base_model().model.layers[0].mlp.down_proj
    with torch.no_grad():
        layer.base_layer.weight.fill_(1.0)
        layer.lora_A["default"].weight.fill_(1e-2)
        layer.lora_B["default"].weight.fill_(1e-3)
        inputs = torch.ones(1, layer.base_layer.in_features, dtype=torch.bfloat16)
        inputs[:, ::2] = -1  # the base adds up to nothing, and so does the adapter but for the first input
        inputs[:, 0] = 1
        found = Sampled(Projection([layer]))(inputs)[0, 0].item() - 2.0
        rank = layer.lora_A["default"].weight.shape[0]
        wanted = 2 * rank * 1e-2 * 1e-3 * layer.scaling["default"]
        base, down, up = layer.base_layer.weight, layer.lora_A["default"].weight, layer.lora_B["default"].weight
        merged = base + (layer.scaling["default"] * up @ down).to(base.dtype)
    assert torch.equal(merged, base), "merged, nothing of it would be left"
    assert abs(found - wanted) < 2**-7
    assert abs(layer(inputs)[0, 0].item() - 2.0 - wanted) < 2**-7


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_reference_is_sampled_without_the_adapter(of_kind: Callable[..., Policy], dtype: str) -> None:
    policy = of_kind("llama", adapter="lora", dtype=dtype)
    generator, call = HFGenerator(policy), {"temperature": 1.0, "max_new_tokens": 9, "seeds": [[1, 2]] * 3}
    rows = []
    for number in range(3):
        with policy.reference() if number == 1 else nullcontext():
            actions = generator.generate(PROMPTS, 2, **call)  # type: ignore[arg-type]
        rows.append([action for group in actions for action in group])
    assert rows[0] == rows[2]
    assert rows[0] != rows[1]
    prompts = [prompt for prompt in PROMPTS for _ in range(2)]
    asked = [(prompt, list(action.token_ids)) for prompt, action in zip(prompts, rows[1], strict=True)]
    with policy.reference(), torch.no_grad():
        values, mask, _ = completion_logprobs(policy.model, asked, 1.0)
    recorded = torch.tensor([value for action in rows[1] for value in action.sampler_logprobs])
    assert (values[mask] - recorded).abs().max() < (1e-4 if dtype == "float32" else 0.1)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("trained", [False, True])
def test_a_projection_follows_its_weights(trained: bool, bias: bool) -> None:
    layers = [nn.Linear(4, size, bias=bias).requires_grad_(trained) for size in (3, 2)]
    inputs = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    before = [layer.weight.clone() for layer in layers]
    with torch.no_grad():
        projection = Projection(layers)
        sampled = Sampled(projection)
        assert all(torch.equal(layer.weight, weight) for layer, weight in zip(layers, before, strict=True))
        for factor in (1.0, -3.0) if trained else (1.0,):
            for layer in layers:
                layer.weight.mul_(factor)
            sampled.refresh()
            for one in (projection, sampled):
                assert torch.allclose(one(inputs), torch.cat([layer(inputs) for layer in layers], 1), atol=1e-6)


def test_without_layouts_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, inputs = torch.randn(6, 5), torch.randn(3, 5)
    with torch.no_grad():
        found = laid_out(weight)(inputs, None)
        monkeypatch.setattr(layout, "onednn_dtypes", lambda: frozenset())
        plain = laid_out(weight)(inputs, None)
    assert torch.allclose(found, plain, atol=1e-5)
    assert torch.allclose(plain, inputs @ weight.T, atol=1e-5)


def test_without_a_layout_an_adapter_stays_beside_its_weights(
    of_kind: Callable[..., Policy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "onednn_dtypes", lambda: frozenset())
    policy = of_kind("llama", adapter="lora")
    body = body_of(policy.model)
    assert body is not None
    with torch.no_grad():
        projection = body.layers[0].qkv
        sampled = Sampled(projection)
        inputs = torch.randn(3, projection.bases[0].in_features, generator=torch.Generator().manual_seed(0))
        found, wanted = sampled(inputs), projection(inputs)
        assert torch.allclose(found, wanted, atol=1e-5)
        projection.bases[0].weight.mul_(2)
        assert not torch.allclose(sampled(inputs), found), "no copy of what is frozen"


@pytest.mark.parametrize("masked", [False, True])
def test_scores_are_not_rounded(masked: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    queries, keys = (4 * torch.randn(2, size, 32, generator=generator).to(torch.bfloat16) for size in (3, 50))
    mask = torch.zeros(2, 1, 50, dtype=torch.bfloat16)
    mask[:, :, 40:] = torch.finfo(torch.bfloat16).min
    wanted = queries.double() @ keys.double().transpose(1, 2) * 0.3
    found = _scores(queries, keys, mask if masked else None, 0.3)
    seen = slice(40 if masked else 50)
    assert (found - wanted)[..., seen].abs().max() < 1e-4 * wanted.abs().max()
    assert not masked or bool((found[..., 40:] < -1e30).all())


@pytest.mark.parametrize("rows", [[[2, 0], [1], [3, 5, 4]], [[0, 1], [2, 3]], [[1], [0]], [[0]]])
def test_every_row_finds_its_way_to_its_group_and_back(rows: list[list[int]]) -> None:
    seating = seat(rows, torch.device("cpu"))
    count, most = sum(map(len, rows)), max(map(len, rows))
    values = torch.arange(count * 2 * 3 * 5).view(count, 2, 3, 5)  # rows, key heads, queries that share it, …
    spread = seating.spread(values)
    assert spread.shape == (2 * len(rows), 3 * most, 5)
    for group, of_group in enumerate(rows):
        for head in range(2):
            found = spread[2 * group + head].view(most, 3, 5)
            assert torch.equal(found[: len(of_group)], values[of_group, head])
    assert torch.equal(seating.collect(spread, 3), values)


def _reads(policy: Policy, prompts: Any, decoder: Decoder | None = None) -> tuple[Decoder, list[int], Any]:
    """A decoder that has read the prompts, how many tokens went through the layers for each, and what it read."""
    body = body_of(policy.model)
    assert body is not None
    decoder, counts, found = decoder or Decoder(body), list[int](), []
    states = body.states
    with torch.inference_mode():
        decoder.begin(1, 1, 100)
        for prompt in prompts:
            body.states = lambda forest, *rest: counts.append(len(forest.ids)) or states(forest, *rest)  # type: ignore[method-assign]
            try:
                found.append(decoder.read([prompt])[0])
            finally:
                body.states = states  # type: ignore[method-assign]
    return decoder, counts, found


def test_what_has_been_read_is_not_read_again(of_kind: Callable[..., Policy]) -> None:
    """The next stage of a trajectory, another state of the same task, and the same prompt once more."""
    policy = of_kind("llama")
    first, stage = [*range(30)], [*range(30), *range(50, 60)]
    other = [*range(20), 99, 98, 97]
    prompts = [first, stage, other, first, [77, 78], first[:20]]
    _, counts, found = _reads(policy, prompts)
    assert counts == [30, 10, 3, 2, 1], "what is known is not read; of what is only a beginning, the last token is"
    for prompt, read in zip(prompts, found, strict=True):
        alone = _reads(policy, [prompt])[2][0]
        assert (read.logits - alone.logits).abs().max() < 1e-4
        for one, two in zip(read.cache, alone.cache, strict=True):
            assert one.shape == two.shape
            assert (one - two).abs().max() < 1e-4


def test_what_was_read_by_other_weights_is_forgotten(of_kind: Callable[..., Policy]) -> None:
    policy = of_kind("llama", adapter="lora")
    prompt = [*range(30)]
    decoder, _, before = _reads(policy, [prompt])
    assert _reads(policy, [prompt], decoder)[1] == []
    weight = next(parameter for name, parameter in policy.model.named_parameters() if "lora_B" in name)
    changes: list[Callable[[], Any]] = [
        lambda: weight.data.add_(0.1),
        lambda: setattr(weight, "data", weight.data + 0.1),
        lambda: torch.nn.init.constant_(weight, 0.2),
    ]
    for change in changes:
        change()
        _, counts, after = _reads(policy, [prompt], decoder)
        assert counts == [30]
        assert (before[0].logits - after[0].logits).abs().max() > 1e-4
        before = after
    with policy.reference():
        assert _reads(policy, [prompt], decoder)[1] == [30]
    assert _reads(policy, [prompt], decoder)[1] == [30]


def test_a_trained_head_is_taken_over_though_its_norm_stays(of_kind: Callable[..., Policy]) -> None:
    """An optimizer in one kernel changes no version of a tensor, and a norm in fp32 can be equal by chance."""
    policy = of_kind("llama", adapter="full")
    prompt, head = [*range(30)], policy.model.lm_head.weight
    decoder, _, _ = _reads(policy, [prompt])
    head.data[:2] = head.data[:2].flip(0)
    policy.model.model.norm.weight.data.mul_(1.5)
    after = _reads(policy, [prompt], decoder)[2][0]
    new = _reads(policy, [prompt])[2][0]
    assert (after.logits - new.logits).abs().max() < 1e-5


def test_after_forgetting_all_is_read_as_by_a_new_generator(of_kind: Callable[..., Policy]) -> None:
    policy = of_kind("llama")
    prompts = [[*range(30)], [*range(20), 99, 98, 97]]

    def sampled(generator: HFGenerator, prompt: list[int]) -> tuple[float, ...]:
        (action,) = generator.generate([prompt], 1, temperature=1.0, max_new_tokens=5, seeds=[[0]])[0]
        return action.sampler_logprobs

    generator = HFGenerator(policy)
    sampled(generator, prompts[0])
    generator.forget()
    assert sampled(generator, prompts[1]) == sampled(HFGenerator(policy), prompts[1])
    assert generator._decoder is not None
    assert [*generator._decoder.kept] == [tuple(prompts[1])]


def test_what_is_kept_is_bounded(of_kind: Callable[..., Policy], monkeypatch: pytest.MonkeyPatch) -> None:
    policy = of_kind("llama")
    size = _reads(policy, [[*range(30)]])[2][0].bytes
    monkeypatch.setattr("workbench.agent.decoder.KEPT_BYTES", 3 * size)
    prompts = [[start, *range(100, 129)] for start in range(8)]
    decoder, _, found = _reads(policy, prompts)
    assert len(found) == 8
    assert [*decoder.kept] == [tuple(prompt) for prompt in prompts[-3:]]


kept_prompts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8).map(tuple), max_size=12)


@given(kept_prompts, st.lists(st.integers(0, 2), max_size=8).map(tuple))
def test_the_kept_prompt_with_most_in_common_is_found(prompts: list[tuple[int, ...]], wanted: tuple[int, ...]) -> None:
    """As by looking at all of them."""
    kept = Kept()
    for prompt in prompts:
        kept.keep(prompt, Read((), torch.zeros(1)))
    other, length = kept.nearest(wanted)
    assert length == max((common(wanted, prompt) for prompt in prompts), default=0)
    assert length == 0 or common(wanted, other) == length


def test_a_moved_row_goes_on_as_before(of_kind: Callable[..., Policy]) -> None:
    policy = of_kind("llama")
    token = torch.tensor([7, 8, 9])
    with torch.inference_mode():
        body = body_of(policy.model)
        assert body is not None
        decoder, logits = Decoder(body), []
        for moved in (False, True):
            decoder.begin(3, 4, 40)
            reads = decoder.read([[*range(20)], [*range(3, 14)]])
            prompts, starts = gather(reads), torch.tensor([20, 11, 20])
            seating = seat([[0, 2], [1]], torch.device("cpu"))
            decoder.step(token, starts, [0, 0, 0], prompts, seating)
            if moved:
                decoder.move(2, 0)
                seating = seat([[0], [1]], torch.device("cpu"))
            rows = [0, 1] if moved else [0, 1, 2]
            ids = torch.tensor([4] * len(rows))
            logits.append(decoder.step(ids, starts[rows] + 1, [1] * len(rows), prompts, seating))
    assert (logits[1][0] - logits[0][2]).abs().max() < 1e-5
    assert (logits[1][1] - logits[0][1]).abs().max() < 1e-5


@pytest.mark.parametrize("kind", ["gpt2", "gemma2", "mistral"])
def test_others_are_left_to_transformers_and_it_is_said(
    make_policy: MakePolicy, build_model: Callable[..., Path], tmp_path: Path, kind: str, caplog: Any
) -> None:
    shape = {"gemma2": {"final_logit_softcapping": 2.0, "sliding_window": 4, "head_dim": 8}}
    shape |= {"gpt2": {"n_positions": 256}, "mistral": {"sliding_window": 4}}
    with caplog.at_level("INFO"):
        policy = make_policy(policy=str(build_model(tmp_path / kind, kind=kind, **shape[kind])))
        assert body_of(policy.model) is None
    assert "computed by its own modules" in caplog.text or "computes each prompt for every completion" in caplog.text


def _scale(policy: Policy) -> None:
    for module in policy.model.modules():
        if hasattr(module, "lora_A"):
            module.scaling["default"] *= 3


def _double_head(policy: Policy) -> None:
    with torch.no_grad():
        policy.model.get_output_embeddings().weight.mul_(2)


def _second_adapter(policy: Policy) -> None:
    policy.model.add_adapter("second", LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    policy.model.base_model.set_adapter(["default", "second"])


def _activation(policy: Policy) -> None:
    for layer in policy.model.get_base_model().model.layers:
        layer.mlp.act_fn = nn.Tanh()


@pytest.mark.parametrize("change", [_scale, _double_head, _second_adapter, _activation])
def test_what_was_read_follows_the_model(of_kind: Callable[..., Policy], change: Callable[[Policy], None]) -> None:
    """An adapter's scaling, a frozen head, another adapter, another activation: recorded as the modules compute it."""
    policy = of_kind("llama", adapter="lora")
    with torch.no_grad():
        for parameter in policy.trainable():
            parameter.add_(0.05)
    generator, call = HFGenerator(policy), {"temperature": 1.0, "max_new_tokens": 9, "seeds": [[1, 2]] * 3}
    before = generator.generate(PROMPTS, 2, **call)  # type: ignore[arg-type]
    change(policy)
    after = generator.generate(PROMPTS, 2, **call)  # type: ignore[arg-type]
    assert after != before
    with torch.no_grad():
        for prompt, group in zip(PROMPTS, after, strict=True):
            for action in group:
                whole = torch.tensor([[*prompt, *action.token_ids]])
                logits = policy.model(input_ids=whole, use_cache=False).logits[0, len(prompt) - 1 : -1]
                wanted = logits.log_softmax(-1).gather(1, whole[0, len(prompt) :, None])[:, 0]
                assert (wanted - torch.tensor(action.sampler_logprobs)).abs().max() < 1e-4


def test_training_finds_the_room_of_sampling_free(of_kind: Callable[..., Policy]) -> None:
    policy = of_kind("llama")
    generator = HFGenerator(policy)
    generator.generate(PROMPTS, 2, temperature=1.0, max_new_tokens=9, seeds=[[1, 2]] * 3)
    assert generator._decoder is not None
    assert generator._decoder.cache == []
