"""Sampling: what is drawn, what is recorded, who is told, and that nothing of a call stays behind."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch

from workbench.agent import generate as sampling
from workbench.agent.decoder import Decoder, bytes_per_token
from workbench.agent.generate import HFGenerator, choose
from workbench.agent.layout import Sampled
from workbench.agent.llama import Body, body_of
from workbench.agent.logprobs import completion_logprobs, split_head
from workbench.agent.policy import Policy
from workbench.types import Action, StopReason, WorkbenchError

MakePolicy = Callable[..., Policy]
PROMPTS = [[5, 6, 7, 8, 9], list(range(40, 70)), [100, 101]]
FAMILIES = {
    "llama": {},
    "gpt2": {"n_positions": 256},
    "qwen3": {},
    "gemma2": {"final_logit_softcapping": 2.0, "sliding_window": 4, "head_dim": 8},
    "mistral": {"sliding_window": 4},
    "bloom": {},
    "granite": {"logits_scaling": 3.0},
    "mamba": {"state_size": 4},
}
DECODED = {"llama", "qwen3"}


def sample(
    policy: Policy,
    prompts: Sequence[Sequence[int]] = PROMPTS,
    n: int = 4,
    *,
    first_seed: int = 0,
    max_rows: int = sampling.MAX_ROWS,
    **settings: Any,
) -> list[list[Action]]:
    seeds = [[first_seed + i * n + j for j in range(n)] for i in range(len(prompts))]
    settings = {"temperature": 1.0, "max_new_tokens": 12, **settings}
    return HFGenerator(policy, max_rows=max_rows).generate(prompts, n, seeds=seeds, **settings)


def ids(actions: list[list[Action]]) -> list[list[tuple[int, ...]]]:
    return [[action.token_ids for action in row] for row in actions]


def scores(policy: Policy, prompts: Sequence[Sequence[int]], actions: list[list[Action]], temperature: float) -> float:
    """Largest difference between recorded and recomputed log-probabilities."""
    rows = [(prompt, a.token_ids) for prompt, group in zip(prompts, actions, strict=True) for a in group]
    with torch.no_grad():
        values, mask, _ = completion_logprobs(policy.model, rows, temperature)
    recorded = torch.tensor([value for group in actions for a in group for value in a.sampler_logprobs])
    return float((values[mask] - recorded).abs().max())


def greedy_by_hand(policy: Policy, prompt: Sequence[int], count: int) -> tuple[int, ...]:
    tokens: list[int] = []
    with torch.no_grad():
        while len(tokens) < count and not (tokens and tokens[-1] in policy.stop_ids):
            logits = policy.model(input_ids=torch.tensor([[*prompt, *tokens]]), use_cache=False).logits
            tokens.append(int(logits[0, -1].argmax()))
    return tuple(tokens)


@pytest.fixture
def of_kind(make_policy: MakePolicy, build_model: Callable[..., Path], tmp_path: Path) -> Callable[..., Policy]:
    def build(kind: str, **settings: Any) -> Policy:
        return make_policy(policy=str(build_model(tmp_path / kind, kind=kind, **FAMILIES[kind])), **settings)

    return build


# --- right tokens, right scores


@pytest.mark.parametrize("kind", FAMILIES)
def test_greedy_equals_running_everything_again(of_kind: Callable[..., Policy], kind: str) -> None:
    policy = of_kind(kind)
    assert (body_of(policy.model) is not None) == (kind in DECODED)
    actions = sample(policy, n=2, greedy=True)
    for prompt, group in zip(PROMPTS, actions, strict=True):
        assert group[0].token_ids == group[1].token_ids == greedy_by_hand(policy, prompt, 12)


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.5])
@pytest.mark.parametrize("kind", FAMILIES)
def test_sampler_and_trainer_agree(of_kind: Callable[..., Policy], kind: str, temperature: float) -> None:
    policy = of_kind(kind)
    actions = sample(policy, temperature=temperature)
    assert scores(policy, PROMPTS, actions, temperature) < 1e-4
    other = 1.0 if temperature != 1.0 else 0.6
    assert scores(policy, PROMPTS, actions, other) > 1e-2


def test_sampler_and_trainer_agree_when_the_policy_is_in_bf16(make_policy: MakePolicy) -> None:
    policy = make_policy(dtype="bfloat16")
    assert scores(policy, PROMPTS, sample(policy), 1.0) < 0.1


def test_adapter_is_what_samples(make_policy: MakePolicy) -> None:
    policy = make_policy(adapter="lora")
    with torch.no_grad():
        for parameter in policy.trainable():
            parameter.add_(0.2)
    actions = sample(policy)
    assert scores(policy, PROMPTS, actions, 1.0) < 1e-4
    with policy.reference():
        assert scores(policy, PROMPTS, actions, 1.0) > 1e-2


def test_no_key_or_value_outlives_an_update(tiny_policy: Policy) -> None:
    generator = HFGenerator(tiny_policy)
    call = {"temperature": 1.0, "max_new_tokens": 12, "seeds": [[1, 2]] * 3}
    before = generator.generate(PROMPTS, 2, **call)
    with torch.no_grad():
        for parameter in tiny_policy.trainable():
            parameter.mul_(-1.5)
    tiny_policy.version = 7
    after = generator.generate(PROMPTS, 2, **call)
    assert scores(tiny_policy, PROMPTS, after, 1.0) < 1e-4
    assert ids(before) != ids(after)
    assert {action.policy_version for row in after for action in row} == {7}


# --- seeds and neighbours


def test_equal_seeds_equal_actions(tiny_policy: Policy) -> None:
    first, second, third = sample(tiny_policy), sample(tiny_policy), sample(tiny_policy, first_seed=1000)
    assert first == second
    assert ids(first) != ids(third)
    assert len({action.token_ids for action in sample(tiny_policy, n=8)[0]}) > 1


@pytest.mark.parametrize("max_rows", [1, 2, 5, 128])
def test_a_row_does_not_depend_on_its_neighbours(tiny_policy: Policy, max_rows: int) -> None:
    together = sample(tiny_policy, n=4, max_rows=max_rows)
    for i, prompt in enumerate(PROMPTS):
        alone = sample(tiny_policy, [prompt], 4, first_seed=4 * i)
        assert ids([together[i]]) == ids(alone)


def test_slots_survive_many_rows_of_many_lengths(tiny_policy: Policy) -> None:
    tiny_policy.stop_ids = tuple(range(0, 320, 8))  # rows end early and at different times
    prompts = [list(range(3, 4 + length)) for length in (1, 40, 7, 22, 3, 90, 15, 64)]
    actions = sample(tiny_policy, prompts, 5, max_rows=7, max_new_tokens=40)
    lengths = {len(action.token_ids) for row in actions for action in row}
    assert len(lengths) > 5
    assert scores(tiny_policy, prompts, actions, 1.0) < 1e-4
    for i, prompt in enumerate(prompts):
        assert ids([actions[i]]) == ids(sample(tiny_policy, [prompt], 5, first_seed=5 * i, max_new_tokens=40))


def test_global_generator_is_left_alone(tiny_policy: Policy) -> None:
    before = torch.get_rng_state()
    sample(tiny_policy)
    assert torch.equal(before, torch.get_rng_state())


def test_memory_bounds_the_slots(tiny_policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bytes_per_token(tiny_policy.model) == 2 * 2 * 2 * 8 * 4  # keys and values, layers, heads, dim, fp32
    expected = ids(sample(tiny_policy))
    sizes = []
    original = Decoder.begin
    monkeypatch.setattr(Decoder, "begin", lambda self, *a: sizes.append(a) or original(self, *a))
    # of the longest prompt twice, and four rows: the next one has another prompt
    monkeypatch.setattr(sampling, "CACHE_BYTES", (2 * 30 + 4 * 12 + 2 * 30 + 11) * 256)
    assert ids(sample(tiny_policy)) == expected
    assert sizes == [(4, 12, 42)]


# --- drawing


def test_draws_follow_the_distribution() -> None:
    logits = torch.tensor([2.0, 0.0, -1.0, float("-inf"), 1.0])
    count = 20_000
    uniforms = torch.rand(count, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    tokens, values = choose(logits.expand(count, -1), uniforms, 0.7)
    expected = torch.softmax(logits / 0.7, -1)
    assert torch.allclose(values.exp(), expected[tokens])
    shares = torch.bincount(tokens, minlength=5) / count
    assert (shares - expected).abs().max() < 0.01
    assert shares[3] == 0


@pytest.mark.parametrize("vocabulary", [2, 255, 256, 257, 1000, 49_152])
def test_a_draw_is_the_inverse_of_the_whole_distribution(vocabulary: int) -> None:
    generator = torch.Generator().manual_seed(vocabulary)
    logits = 3 * torch.randn(64, vocabulary, generator=generator)
    uniforms = torch.rand(64, generator=generator, dtype=torch.float64)
    tokens, _ = choose(logits, uniforms, 1.3)
    reached = torch.softmax(logits.double() / 1.3, -1).cumsum(-1)
    after, before = (reached.gather(1, (tokens + shift).unsqueeze(1) % vocabulary).squeeze(1) for shift in (0, -1))
    assert (uniforms < after + 1e-5).all()
    assert ((uniforms > before - 1e-5) | (tokens == 0)).all()


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-53])
def test_impossible_tokens_are_never_drawn(uniform: float) -> None:
    logits = torch.full((1, 1000), float("-inf"))
    logits[0, [7, 500]] = torch.tensor([30.0, -80.0])
    tokens, values = choose(logits, torch.tensor([uniform], dtype=torch.float64), 1.0)
    assert int(tokens) in (7, 500)
    assert values.isfinite().all()


def test_no_sampling_field_of_the_checkpoint_is_used(
    make_policy: MakePolicy, tiny_folder: Path, tmp_path: Path, tiny_policy: Policy
) -> None:
    folder = tmp_path / "narrow"
    shutil.copytree(tiny_folder, folder)
    fields = {"top_k": 1, "repetition_penalty": 1.3, "temperature": 0.1, "do_sample": True, "eos_token_id": 2}
    (folder / "generation_config.json").write_text(json.dumps(fields))
    narrow = make_policy(policy=str(folder))
    assert len({action.token_ids for action in sample(narrow, n=16)[0]}) > 8
    assert ids(sample(narrow)) == ids(sample(tiny_policy))


# --- ends


def test_eos_is_kept_and_length_is_said(tiny_policy: Policy) -> None:
    tiny_policy.stop_ids = tuple(range(160))
    actions = [action for row in sample(tiny_policy, n=16, max_new_tokens=3) for action in row]
    assert {action.stop_reason for action in actions} == {StopReason.EOS, StopReason.LENGTH}
    for action in actions:
        stopped = [token in tiny_policy.stop_ids for token in action.token_ids]
        assert len(action.sampler_logprobs) == len(action.token_ids) <= 3
        assert not any(stopped[:-1])
        assert stopped[-1] == (action.stop_reason is StopReason.EOS)
        assert stopped[-1] or len(action.token_ids) == 3


def test_told_at_once_and_once(tiny_policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_policy.stop_ids = tuple(range(0, 320, 8))
    steps = Counter[str]()
    told: list[tuple[int, int, int, Action]] = []
    original = sampling._step
    monkeypatch.setattr(sampling, "_step", lambda *a: steps.update(["step"]) or original(*a))
    actions = sample(
        tiny_policy, n=6, max_new_tokens=40, on_finish=lambda i, j, action: told.append((i, j, steps["step"], action))
    )
    assert {(i, j): action for i, j, _, action in told} == {
        (i, j): action for i, row in enumerate(actions) for j, action in enumerate(row)
    }
    assert len(told) == 18
    assert all(step == len(action.token_ids) - 1 for _, _, step, action in told)


def test_prompts_are_read_once_and_finished_rows_dropped(tiny_policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_policy.stop_ids = tuple(range(0, 320, 8))
    sample(tiny_policy)  # looks at the model's shape once
    read, rows, step = prefilled(monkeypatch), list[int](), Decoder.step
    monkeypatch.setattr(Decoder, "step", lambda self, ids, *rest: rows.append(len(ids)) or step(self, ids, *rest))
    actions = sample(tiny_policy, n=6, max_new_tokens=40)
    lengths = [len(action.token_ids) for row in actions for action in row]
    assert read == [sum(map(len, PROMPTS))]
    assert rows == [sum(length > t for length in lengths) for t in range(1, max(lengths))]


def prefilled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Takes the number of tokens of each prefill from now on."""
    counts, states = list[int](), Body.states
    monkeypatch.setattr(
        Body, "states", lambda self, forest, *a: counts.append(len(forest.ids)) or states(self, forest, *a)
    )
    return counts


def test_what_prompts_begin_with_in_common_is_read_once(tiny_policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    sample(tiny_policy)  # looks at the model's shape once
    read = prefilled(monkeypatch)
    begin = list(range(3, 40))
    prompts = [[*begin, 50, 51], [*begin, 60], begin]
    actions = sample(tiny_policy, prompts, 3)
    assert read == [len(begin) + 3]
    assert scores(tiny_policy, prompts, actions, 1.0) < 1e-4


@pytest.mark.parametrize("kind", ["gemma2", "granite"])
def test_a_whole_model_makes_logits_for_one_position(of_kind: Callable[..., Policy], kind: str) -> None:
    policy = of_kind(kind)
    assert split_head(policy.model) is None
    assert body_of(policy.model) is None
    shapes: list[tuple[int, ...]] = []
    policy.model.register_forward_hook(lambda module, args, output: shapes.append(tuple(output.logits.shape)))
    sample(policy)
    assert {positions for _, positions, _ in shapes} == {1}


def test_ids_are_never_read_from_text(tiny_policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = [tiny_policy.tokenizer(text)["input_ids"] for text in ("he", "llo")]
    script = [token for piece in pieces for token in piece] + [tiny_policy.tokenizer.eos_token_id]
    assert tiny_policy.tokenizer("hello")["input_ids"] != script[:-1]

    def scripted(logits: torch.Tensor, uniforms: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        token = script.pop(0)
        return torch.tensor([token]), torch.log_softmax(logits, -1)[:, token]

    def forbidden(*_: Any, **__: Any) -> None:
        raise AssertionError("a completion was encoded")

    expected = tuple(script)
    monkeypatch.setattr(sampling, "choose", scripted)
    monkeypatch.setattr(type(tiny_policy.tokenizer), "__call__", forbidden)
    monkeypatch.setattr(type(tiny_policy.tokenizer), "encode", forbidden)
    action = sample(tiny_policy, [[5, 6]], 1)[0][0]
    assert action.token_ids == expected
    assert action.text == "hello"


def test_ids_beyond_the_tokenizer_decode_to_nothing(tiny_policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "choose", lambda logits, *_: (torch.tensor([322]), torch.tensor([-1.0])))
    assert sample(tiny_policy, [[5, 6]], 1, max_new_tokens=2)[0][0].text == ""


def test_one_new_token(tiny_policy: Policy) -> None:
    assert all(len(action.token_ids) == 1 for row in sample(tiny_policy, max_new_tokens=1) for action in row)


def test_nothing_to_do(tiny_policy: Policy) -> None:
    assert sample(tiny_policy, [], 4) == []


# --- state restored


def test_checkpointing_changes_no_text_and_no_flag(make_policy: MakePolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = sample(make_policy(adapter="lora"), greedy=True)
    policy = make_policy(adapter="lora")
    policy.set_checkpointing(True)
    inner = policy.model.get_base_model()
    flags = [(m.training, getattr(m, "gradient_checkpointing", None)) for m in policy.model.modules()]
    use_cache = inner.config.use_cache
    sample(policy)  # looks at the model's shape once
    read = prefilled(monkeypatch)
    assert ids(sample(policy, greedy=True)) == ids(plain)
    assert read == [sum(map(len, PROMPTS))]  # no position twice
    assert flags == [(m.training, getattr(m, "gradient_checkpointing", None)) for m in policy.model.modules()]
    assert inner.config.use_cache == use_cache


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_what_depends_on_the_mode_is_off_while_sampling(of_kind: Callable[..., Policy], kind: str) -> None:
    """Also what somebody has added to the model since it was loaded."""
    expected = sample(of_kind(kind))
    policy, modes = of_kind(kind), []
    dropout = torch.nn.Dropout(0.5)
    dropout.register_forward_hook(lambda module, *_: modes.append(module.training))
    layers, name = (policy.model.model.layers, "act_fn") if kind == "llama" else (policy.model.transformer.h, "act")
    for layer in layers:
        setattr(layer.mlp, name, torch.nn.Sequential(getattr(layer.mlp, name), dropout))
    policy.model.train()
    assert ids(sample(policy)) == ids(expected)
    assert modes
    assert not any(modes)
    assert all(module.training for module in policy.model.modules())


def test_training_after_sampling(tiny_policy: Policy) -> None:
    actions = sample(tiny_policy)
    rows = [(prompt, a.token_ids) for prompt, row in zip(PROMPTS, actions, strict=True) for a in row]
    completion_logprobs(tiny_policy.model, rows, 1.0)[0].sum().backward()
    assert all(parameter.grad is not None for parameter in tiny_policy.trainable())


def test_state_is_restored_after_an_error(tiny_policy: Policy) -> None:
    tiny_policy.model.train()

    def fail(*_: Any) -> None:
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        sample(tiny_policy, on_finish=fail)
    assert all(module.training for module in tiny_policy.model.modules())


# --- refusals


def test_too_long_prompts_are_refused(tiny_policy: Policy) -> None:
    with pytest.raises(WorkbenchError, match="prompt of 250 tokens and max_completion_tokens=12 exceed the 256"):
        sample(tiny_policy, [[5] * 250])
    assert sample(tiny_policy, [[5] * 244], 1)


def test_empty_prompts_are_refused(tiny_policy: Policy) -> None:
    with pytest.raises(WorkbenchError, match="no tokens"):
        sample(tiny_policy, [[5], []])


def test_seeds_must_fit(tiny_policy: Policy) -> None:
    with pytest.raises(ValueError, match=r"\[1\]\[2\]"):
        HFGenerator(tiny_policy).generate([[5]], 2, temperature=1.0, max_new_tokens=2, seeds=[[1]])


@pytest.mark.parametrize("greedy", [True, False])
def test_nan_is_refused(tiny_policy: Policy, greedy: bool) -> None:
    with torch.no_grad():
        next(tiny_policy.trainable()).fill_(float("nan"))
    with pytest.raises(WorkbenchError, match="NaN or infinite logits at version 0"):
        sample(tiny_policy, greedy=greedy)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"temperature": 0.0}, "temperature=0.0: expected a number above 0"),
        ({"temperature": -1.0}, "temperature=-1.0"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"max_new_tokens": 0}, "max_completion_tokens=0: expected at least 1"),
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused(tiny_policy: Policy, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(WorkbenchError, match=said):
        sample(tiny_policy, **settings)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seeds_out_of_range_are_refused(tiny_policy: Policy, seed: int) -> None:
    with pytest.raises(ValueError, match=f"a seed is {seed}"):
        sample(tiny_policy, PROMPTS[:1], 1, first_seed=seed)


@pytest.mark.parametrize("first", [True, False], ids=["first call", "after an update"])
def test_an_interrupted_call_leaves_no_mix_of_weights(
    tiny_policy: Policy, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    """Ctrl-C while the weights are taken over: what is sampled afterwards is by the weights as they are."""
    generator, real, calls = HFGenerator(tiny_policy), Sampled.refresh, Counter[str]()
    arguments: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 8, "seeds": [[0, 1]]}
    if not first:
        generator.generate(PROMPTS[:1], 2, **arguments)
    with torch.no_grad():
        for parameter in tiny_policy.model.parameters():
            parameter.mul_(1.5)

    def interrupted(self: Sampled) -> None:
        calls["refresh"] += 1
        if calls["refresh"] == 3:
            raise KeyboardInterrupt
        real(self)

    monkeypatch.setattr(Sampled, "refresh", interrupted)
    with pytest.raises(KeyboardInterrupt):
        generator.generate(PROMPTS[:1], 2, **arguments)
    assert generator.generate(PROMPTS[:1], 2, **arguments) == HFGenerator(tiny_policy).generate(
        PROMPTS[:1], 2, **arguments
    )


def test_one_call_at_a_time(tiny_policy: Policy) -> None:
    """From another thread, or when told of an action: refused, and the call under way is not disturbed."""
    generator = HFGenerator(tiny_policy)
    arguments: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 8}
    refused = []

    def again(*_: Any) -> None:
        try:
            generator.generate(PROMPTS[1:2], 1, seeds=[[9]], **arguments)
        except RuntimeError as error:
            refused.append(str(error))

    def elsewhere(*_: Any) -> None:
        thread = Thread(target=again)
        thread.start()
        thread.join()

    wanted = HFGenerator(tiny_policy).generate(PROMPTS[:1], 2, seeds=[[0, 1]], **arguments)
    for on_finish in (again, elsewhere):
        assert generator.generate(PROMPTS[:1], 2, seeds=[[0, 1]], on_finish=on_finish, **arguments) == wanted
    assert len(refused) == 4
    assert all("sampling already" in text for text in refused)
