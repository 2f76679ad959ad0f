"""The pieces of a layer by finite differences, and which models are read as weights."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
from peft import IA3Config, LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

from workbench.agent import functions, llama, loading
from workbench.agent.attention import unwrapped
from workbench.agent.functions import norm, signed
from workbench.agent.llama import Layer, Projection, body_of
from workbench.agent.logprobs import completion_logprobs
from workbench.agent.policy import Policy
from workbench.agent.prefix import pack

MakePolicy = Callable[..., Policy]


def numbers(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()


def test_a_product_and_its_adapter() -> None:
    """Inputs, weight, bias, and both halves of an adapter; also without an adapter, without a bias."""
    inputs, weight, bias, down, up = numbers(5, 4), numbers(3, 4), numbers(3), numbers(2, 4), numbers(3, 2)
    assert torch.autograd.gradcheck(functions.Product.apply, (inputs, weight, bias, down, up))
    assert torch.autograd.gradcheck(functions.Product.apply, (inputs, weight, None, None, None))
    wanted = nn.functional.linear(inputs, weight + up @ down, bias)
    assert torch.allclose(functions.Product.apply(inputs, weight, bias, down, up), wanted)


@pytest.mark.parametrize("shape", [(5, 6), (4, 3, 6)], ids=str)
def test_rms_norm(shape: tuple[int, ...]) -> None:
    inputs, weight = numbers(*shape), numbers(6, seed=1)
    assert torch.autograd.gradcheck(lambda x, w: functions.Norm.apply(x, w, 1e-3), (inputs, weight))
    module = LlamaRMSNorm(6, eps=1e-3)
    with torch.no_grad():
        module.weight.copy_(weight)
    plain = inputs.detach().float().requires_grad_()
    assert torch.allclose(norm(module, plain), module(plain), atol=1e-6)
    with torch.no_grad():
        assert torch.allclose(norm(module, plain), module(plain), atol=1e-6)


def test_gates() -> None:
    both = numbers(4, 10)
    assert torch.autograd.gradcheck(functions.Gate.apply, (both,))
    gate, up = both.chunk(2, -1)
    assert torch.allclose(functions.Gate.apply(both), nn.functional.silu(gate) * up)


def test_heads_are_turned_as_transformers_turns_them() -> None:
    heads, angles = numbers(5, 4, 8), numbers(5, 1, 4, seed=1).detach()
    angles = torch.cat([angles, angles], -1)
    cos, sin = angles.cos(), angles.sin()
    found = functions.Rotate.apply(heads, cos, signed(sin), 3)
    turned, _ = apply_rotary_pos_emb(
        heads[None].transpose(1, 2), heads[None].transpose(1, 2), cos[None, :, 0], sin[None, :, 0]
    )
    assert torch.allclose(found, torch.cat([turned[0, :3].transpose(0, 1), heads[:, 3:]], 1))
    assert torch.autograd.gradcheck(lambda x: functions.Rotate.apply(x, cos, signed(sin), 3), (heads,))


def test_attention_over_a_forest() -> None:
    forest = pack([[*range(6), 1, 2], [*range(6), 3], [*range(3), 9]], min_shared=2)
    heads = numbers(len(forest.ids), 4 + 2 * 2, 8)
    assert torch.autograd.gradcheck(lambda x: functions.Attend.apply(x, 4, forest.nodes, (), 0.35), (heads,), atol=1e-6)


@pytest.mark.parametrize("adapter", ["lora", "full"])
def test_reading_a_model_changes_none_of_its_numbers(make_policy: MakePolicy, adapter: str) -> None:
    policy = make_policy(adapter=adapter)
    before = {name: tensor.clone() for name, tensor in policy.model.state_dict().items()}
    assert body_of(policy.model) is body_of(policy.model) is not None
    assert {
        name: torch.equal(before[name], tensor) for name, tensor in policy.model.state_dict().items()
    } == dict.fromkeys(before, True)


@pytest.mark.parametrize("adapter", ["lora", "full"])
def test_weights_are_joined_without_a_copy(make_policy: MakePolicy, adapter: str) -> None:
    policy = make_policy(adapter=adapter)
    body = body_of(policy.model)
    assert body is not None
    joined = body.layers[0].qkv
    weight = joined.weight()
    assert weight.requires_grad == (adapter == "full")
    assert all(base.weight.untyped_storage().data_ptr() == weight.data_ptr() for base in joined.bases)


def test_weights_that_went_elsewhere_are_followed() -> None:
    """Moved, converted or trained after they were joined."""
    layers = nn.ModuleList(nn.Linear(4, size, bias=False).requires_grad_(False) for size in (3, 2))
    projection, inputs = Projection([*layers]), torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    for change in (lambda: layers[1].weight.data.mul_(2), lambda: setattr(layers[0].weight, "data", torch.ones(3, 4))):
        change()
        assert torch.allclose(projection(inputs), torch.cat([layer(inputs) for layer in layers], 1), atol=1e-6)
    layers.double()
    with torch.inference_mode():  # sampling comes first
        projection(inputs.double())
    layers[1].requires_grad_(True)
    projection(inputs.double()).sum().backward()
    found = layers[1].weight.grad
    layers[1].weight.grad = None
    layers[1](inputs.double()).sum().backward()
    assert torch.allclose(found, layers[1].weight.grad)
    assert layers[0].weight.grad is None


def test_a_merged_adapter_is_not_added_again(make_policy: MakePolicy) -> None:
    policy = make_policy(adapter="lora")
    with torch.no_grad():
        for parameter in policy.trainable():
            parameter.add_(0.05)
    body = body_of(policy.model)
    assert body is not None
    forest = pack([[*range(20)]])
    with torch.no_grad():
        before = body.states(forest)
        policy.model.merge_adapter()
        merged = body.states(forest)
        policy.model.unmerge_adapter()
    assert (before - merged).abs().max() < 1e-3 * before.abs().max()


def test_in_bf16_a_norm_rounds_the_same_with_and_without_gradient() -> None:
    module = LlamaRMSNorm(64, eps=1e-5).to(torch.bfloat16)
    inputs = numbers(300, 64).detach().to(torch.bfloat16)
    with torch.no_grad():
        module.weight.copy_(torch.linspace(0.3, 2, 64))
        sampled = norm(module, inputs)
    for other in (norm(module, inputs), module(inputs)):
        assert (sampled != other).float().mean() < 1e-3, "but where fp32 rounds to either side"


def test_with_checkpointing_layers_are_computed_again(make_policy: MakePolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = make_policy(adapter="full")
    body, forest = body_of(policy.model), pack([[*range(12)], [*range(8), 50, 51]])
    assert body is not None
    calls, real = [0], Layer.__call__

    def counting(self: Layer, *arguments: Any) -> Any:
        calls[0] += 1
        return real(self, *arguments)

    monkeypatch.setattr(Layer, "__call__", counting)
    gradients = []
    for again in (False, True):
        calls[0] = 0
        policy.model.train(again)
        (policy.model.activation_checkpointing_enable if again else policy.model.activation_checkpointing_disable)()
        policy.model.zero_grad()
        body.states(forest).square().sum().backward()
        gradients.append([parameter.grad.clone() for parameter in policy.trainable() if parameter.grad is not None])
        assert calls[0] == len(body.layers) * (1 + again)
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
def test_an_adapter_that_is_put_on_or_taken_off_is_seen(make_policy: MakePolicy) -> None:
    policy = make_policy(adapter="full")
    rows = [([*range(20)], [7, 8, 9]), ([*range(20)], [30, 31])]
    with torch.no_grad():
        bare = completion_logprobs(policy.model, rows, 1.0)[0]
        adapted = get_peft_model(policy.model, LoraConfig(target_modules="all-linear", init_lora_weights=False)).eval()
        loading.disable_dropout(adapted)
        assert (completion_logprobs(adapted, rows, 1.0)[0] - bare).abs().max() > 0.01
        body = body_of(adapted)
        assert body is not None
        assert torch.equal(completion_logprobs(adapted.unload(), rows, 1.0)[0], bare)


def test_scaling_that_begins_at_far_positions_is_found(
    make_policy: MakePolicy, build_model: Callable[..., Path], tmp_path: Path
) -> None:
    """Ministral multiplies queries by a number that is 1 up to some position."""
    rope = {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "llama_4_scaling_beta": 0.5,
    }
    folder = build_model(tmp_path / "m", kind="ministral3", sliding_window=None, head_dim=8, rope_parameters=rope)
    policy = make_policy(policy=str(folder))
    assert body_of(policy.model) is None
    prompt, completion = [(7 * i) % 300 for i in range(200)], [5, 6, 7, 8]
    with torch.no_grad():
        found = completion_logprobs(policy.model, [(prompt, completion)] * 2, 1.0)[0]
        whole = torch.tensor([[*prompt, *completion]])
        logits = policy.model(input_ids=whole, use_cache=False).logits[0, len(prompt) - 1 : -1]
    wanted = logits.log_softmax(-1).gather(1, torch.tensor(completion)[:, None])[:, 0]
    assert (found - wanted).abs().max() < 1e-4


@pytest.mark.parametrize("adapter", ["lora", "full"])
def test_gradients_in_bf16_point_where_those_in_fp32_do(make_policy: MakePolicy, adapter: str) -> None:
    rows = [([*range(40)], [(3 * i + j) % 300 for j in range(9)]) for i in range(4)]
    gradients = []
    for dtype, plain in (("float32", True), ("bfloat16", False)):
        policy = make_policy(adapter=adapter, dtype=dtype)
        with torch.no_grad():
            for parameter in policy.trainable():
                parameter.add_(0.02 * torch.linspace(-1, 1, parameter.numel()).view_as(parameter))
        if plain:
            unwrapped(policy.model).set_attn_implementation("sdpa")
        assert (body_of(policy.model) is None) == plain
        values, mask, _ = completion_logprobs(policy.model, rows, 1.0)
        values[mask].sum().backward()
        gradients.append({name: p.grad.float() for name, p in policy.model.named_parameters() if p.grad is not None})
    wanted, found = gradients
    assert wanted.keys() == found.keys()
    for name, one in wanted.items():
        if one.norm() > 0:
            assert nn.functional.cosine_similarity(one.flatten(), found[name].flatten(), 0) > 0.99, name


def _biased(layer: Any) -> None:
    layer.lora_B["default"].bias = nn.Parameter(torch.zeros(layer.out_features))


def _variant(layer: Any) -> None:
    layer.lora_variant["default"] = object()


def _dropping(layer: Any) -> None:
    layer.lora_dropout["default"] = nn.Dropout(0.1)


@pytest.mark.parametrize("change", [_biased, _variant, _dropping])
def test_adapters_that_are_more_than_two_matrices_are_left_to_peft(
    make_policy: MakePolicy, change: Callable[[Any], None]
) -> None:
    """While B is 0 they compute the same, so trying does not find them."""
    policy = make_policy(adapter="lora")
    layer = policy.model.get_base_model().model.layers[0].self_attn.q_proj
    change(layer)
    with pytest.raises(ValueError, match="more than A and B"):
        Projection([layer])


def test_a_model_that_normalises_otherwise_is_computed_by_its_own_modules(
    make_policy: MakePolicy, build_model: Callable[..., Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    policy = make_policy(policy=str(build_model(tmp_path / "granite", kind="granite", embedding_multiplier=3.0)))
    assert body_of(policy.model) is None
    assert body_of(policy.model) is None
    assert caplog.text.count("computed by its own modules, which is slower") == 1


def test_in_bf16_a_small_factor_is_not_taken_for_rounding(
    make_policy: MakePolicy, build_model: Callable[..., Path], tmp_path: Path
) -> None:
    settings = {"embedding_multiplier": 1.0, "attention_multiplier": 0.25}
    plain = build_model(tmp_path / "plain", kind="granite", **settings)
    scaled = build_model(tmp_path / "scaled", kind="granite", logits_scaling=1.05, **settings)
    assert body_of(make_policy(policy=str(plain), dtype="bfloat16").model) is not None
    assert body_of(make_policy(policy=str(scaled), dtype="bfloat16").model) is None


WIDE = {"head_dim": 256, "num_attention_heads": 1, "num_key_value_heads": 1}
OTHERWISE: dict[str, tuple[str, dict[str, Any]]] = {
    "some layers without positions": ("smollm3", {"no_rope_layer_interval": 2, "pad_token_id": 0}),
    "with one wide head": ("smollm3", {"no_rope_layer_interval": 2, "pad_token_id": 0, **WIDE}),
    "pairs side by side": ("helium", {"head_dim": 8}),
    "pairs side by side, too": ("ernie4_5", {}),
    "layers that add half": ("granite", {"residual_multiplier": 0.5}),
    "a larger embedding": ("granite", {"embedding_multiplier": 12.0, "attention_multiplier": 0.25}),
    "no gate": ("arcee", {}),
}
"""Families that turn, add or gate otherwise."""


def _add_nothing(model: nn.Module) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "o_proj" in name or "down_proj" in name:
                parameter.zero_()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", [*OTHERWISE])
def test_what_the_weights_hide_is_found(
    make_policy: MakePolicy, build_model: Callable[..., Path], tmp_path: Path, kind: str, dtype: str
) -> None:
    """A layer that adds nothing yet: its logits are right whatever it does, its gradients would not be."""
    family, shape = OTHERWISE[kind]
    policy = make_policy(policy=str(build_model(tmp_path / family, kind=family, **shape)), dtype=dtype)
    _add_nothing(policy.model)
    assert llama._read(policy.model) is None


class _Swapped(nn.Module):
    """Gates what others do not."""

    def __init__(self, mlp: Any) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj, self.act_fn = (
            mlp.gate_proj,
            mlp.up_proj,
            mlp.down_proj,
            mlp.act_fn,
        )

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.down_proj(self.gate_proj(inputs) * self.act_fn(self.up_proj(inputs)))
        return found


class _Hopeless(_Swapped):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) * float("nan")


@pytest.mark.parametrize("kind", [_Swapped, _Hopeless])
def test_a_layer_that_only_looks_alike_is_found(make_policy: MakePolicy, kind: type[_Swapped]) -> None:
    policy = make_policy()
    _add_nothing(policy.model)
    assert llama._read(policy.model) is not None
    policy.model.model.layers[-1].mlp = kind(policy.model.model.layers[-1].mlp)
    assert llama._read(policy.model) is None


def test_a_model_is_read_while_others_use_it(make_policy: MakePolicy) -> None:
    """What the layers are given is noted of the reading thread alone, and no hook stays."""
    policy = make_policy()
    stop = Event()

    def work() -> None:
        with torch.no_grad():
            while not stop.is_set():
                policy.model(input_ids=torch.tensor([[1, 2, 3]]), use_cache=False)

    with ThreadPoolExecutor(2) as pool:
        busy = [pool.submit(work) for _ in range(2)]
        try:
            assert all(llama._read(policy.model) is not None for _ in range(10))
        finally:
            stop.set()
        for one in busy:
            one.result()
    assert not any(layer._forward_hooks for layer in policy.model.model.layers)


def test_small_weights_are_read_all_the_same(make_policy: MakePolicy) -> None:
    policy = make_policy(adapter="lora")
    with torch.no_grad():
        for parameter in policy.model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(1e-3)
    before = [parameter.clone() for parameter in policy.model.parameters()]
    assert llama._read(unwrapped(policy.model)) is not None
    assert all(map(torch.equal, before, policy.model.parameters()))


def test_weights_that_are_not_finite_are_said_to_be(make_policy: MakePolicy, caplog: pytest.LogCaptureFixture) -> None:
    policy = make_policy()
    with torch.no_grad():
        policy.model.model.norm.weight[0] = float("nan")
    assert llama._read(policy.model) is None
    assert "its logits are not finite" in caplog.text


def test_a_layer_with_more_weights_is_computed_by_its_own_modules(make_policy: MakePolicy) -> None:
    """Zeros that nothing reads yet: trying does not find them."""
    policy = make_policy()
    policy.model.model.layers[0].mlp.more = nn.Linear(2, 2)
    assert llama._read(policy.model) is None


@pytest.mark.filterwarnings(
    "ignore:.is_gradient_checkpointing. is deprecated:FutureWarning"
)  # of transformers, by peft
def test_another_adapter_than_lora_is_left_to_peft(make_policy: MakePolicy, tiny_folder: Path) -> None:
    """Even one that does nothing so far, which no comparison could find."""
    policy = make_policy(policy=str(tiny_folder), adapter="full")
    adapted = get_peft_model(policy.model, IA3Config(task_type="CAUSAL_LM"))
    assert body_of(adapted) is None
