"""What is refused before the first step, each in one sentence that names the policy and what to do."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
from transformers import AutoConfig
from transformers.utils import logging as transformers_logging

from workbench.agent import loading
from workbench.agent.policy import Policy, load_policy
from workbench.config import make_config
from workbench.types import WorkbenchError

MakePolicy = Callable[..., Policy]
Build = Callable[..., Any]


def refusal(policy: str, **settings: Any) -> str:
    with pytest.raises(WorkbenchError) as caught:
        load_policy(make_config({"policy": policy, "device": "cpu", **settings}))
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    return message


# --- what loads


def hub(requests: list[str], error: Exception) -> Callable[..., None]:
    """A hub that answers every question with an error."""

    def model_info(api: object, repo: str, **options: Any) -> None:
        requests.append(repo)
        raise error

    return model_info


def test_refuses_paths_that_are_no_model(tmp_path: Path) -> None:
    assert "neither a file, a folder nor a hub id" in refusal(str(tmp_path / "nothing"))
    assert "is no model: expected config.json" in refusal(str(tmp_path))
    (tmp_path / "a.txt").write_text("x")
    assert "is no model file" in refusal(str(tmp_path / "a.txt"))
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"no gguf")
    assert "2 .gguf files" in refusal(str(tmp_path))
    assert "cannot be loaded" in refusal(str(tmp_path / "a.gguf"))


def test_refuses_a_hub_id_at_once_where_the_hub_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[str] = []
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", hub(requests, ConnectionError("no route\nto it")))
    message = refusal("some-owner/some-model")
    assert "the hub cannot be reached (no route) and the cache does not hold it" in message
    assert requests == ["some-owner/some-model"]


@pytest.mark.parametrize("name", ["models--Qwen--Qwen2.5", "qwen2.5.", "-x", "modèle", "a/b.git"])
def test_refuses_a_hub_id_that_can_be_none(name: str) -> None:
    assert "as a hub id it is not well formed" in refusal(name)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [(RepositoryNotFoundError, "the hub has no such model"), (GatedRepoError, "accept its terms on the hub")],
)
def test_refuses_a_hub_id_for_what_the_hub_says(
    monkeypatch: pytest.MonkeyPatch, error: type[RepositoryNotFoundError], sentence: str
) -> None:
    told = error.__new__(error)  # as the hub's client raises it, without the answer it is made from
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", hub([], told))
    assert sentence in refusal("some-owner/some-model")


def test_a_hub_id_in_the_cache_is_loaded_without_the_hub(
    monkeypatch: pytest.MonkeyPatch, tiny_folder: Path, tmp_path: Path
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", hub([], ConnectionError("no route")))
    cached = tmp_path / "models--some-owner--some-model"
    shutil.copytree(tiny_folder, cached / "snapshots" / ("0" * 40))
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0" * 40)
    source = loading.reach_hub(loading.resolve("some-owner/some-model"))
    assert source.offline
    assert loading.load_tokenizer(source).chat_template


def test_weights_of_another_shape_are_told_in_one_sentence_and_nothing_else(
    tiny_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "wide"
    shutil.copytree(tiny_folder, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 2 * config["intermediate_size"]}))
    before = transformers_logging.get_verbosity()
    assert str(folder) in refusal(str(folder))
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert capfd.readouterr() == ("", "")
    assert transformers_logging.get_verbosity() == before


def test_refuses_broken_files(tiny_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(tiny_folder, folder)
    (folder / "model.safetensors").write_bytes(b"\x00" * 64)
    assert "cannot be loaded" in refusal(str(folder))
    (folder / "config.json").write_text('{"model_type": "no such thing"}')
    assert "cannot be loaded" in refusal(str(folder))


def test_refuses_an_adapter_that_is_not_lora(tiny_folder: Path, tmp_path: Path) -> None:
    """Its learned tokens would be left out where weights are read directly."""
    settings = {"peft_type": "PROMPT_TUNING", "base_model_name_or_path": str(tiny_folder)}
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
    assert "PROMPT_TUNING: expected LORA" in refusal(str(tmp_path))


def test_refuses_missing_weights(tiny_folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "incomplete"
    shutil.copytree(tiny_folder, folder)
    weights = load_file(folder / "model.safetensors")
    weights.pop("model.layers.1.mlp.up_proj.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert "incomplete: 1 weights are missing" in refusal(str(folder))


def test_refuses_tokenizer_without_template(tmp_path: Path, build_tokenizer: Build, build_model: Build) -> None:
    assert "without chat template" in refusal(str(build_model(tmp_path, tokenizer=build_tokenizer(template=None))))


def test_missing_pad_token_becomes_eos(
    make_policy: MakePolicy, tmp_path: Path, build_tokenizer: Build, build_model: Build
) -> None:
    folder = build_model(tmp_path, tokenizer=build_tokenizer(pad=False))
    policy = make_policy(policy=str(folder))
    assert policy.pad_id == policy.tokenizer.eos_token_id


def test_refuses_experts_and_small_vocabulary(tmp_path: Path, build_model: Build) -> None:
    moe = {"num_local_experts": 4, "num_experts_per_tok": 2}
    assert "mixture of 4 experts" in refusal(str(build_model(tmp_path / "moe", kind="mixtral", **moe)))
    assert "does not fit its tokenizer" in refusal(str(build_model(tmp_path / "small", vocab_size=300)))


@pytest.mark.parametrize("kind", ["qwen3_moe", "deepseek_v3", "ernie4_5_moe", "dbrx"])
def test_refuses_experts_wherever_a_family_names_them(tiny_policy: Policy, tmp_path: Path, kind: str) -> None:
    AutoConfig.for_model(kind).save_pretrained(tmp_path)
    with pytest.raises(WorkbenchError, match=r"mixture of \d+ experts, which is not supported"):
        loading.load_config(loading.resolve(str(tmp_path)), tiny_policy.tokenizer)


def test_a_dense_model_of_a_family_that_also_has_mixtures_is_taken(tiny_policy: Policy, tmp_path: Path) -> None:
    """Doge counts experts in its config whether or not the model has any."""
    AutoConfig.for_model("doge", is_moe=False).save_pretrained(tmp_path)
    assert loading.load_config(loading.resolve(str(tmp_path)), tiny_policy.tokenizer).num_experts > 1
    AutoConfig.for_model("doge", is_moe=True).save_pretrained(tmp_path)
    with pytest.raises(WorkbenchError, match="mixture of 16384 experts"):
        loading.load_config(loading.resolve(str(tmp_path)), tiny_policy.tokenizer)


def test_refuses_devices_that_are_not_there(tiny_folder: Path) -> None:
    assert "is no device" in refusal(str(tiny_folder), device="tpu-7")
    assert "not available" in refusal(str(tiny_folder), device="cuda:99")


def test_code_in_a_checkpoint_is_never_run(tiny_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "custom"
    shutil.copytree(tiny_folder, folder)
    config = json.loads((folder / "config.json").read_text())
    config.update(model_type="custom", auto_map={"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"})
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    assert "cannot be loaded" in refusal(str(folder))
    assert not (tmp_path / "ran").exists()


def test_adapter_folder_refuses_full_fine_tuning(make_policy: MakePolicy, tmp_path: Path) -> None:
    make_policy(adapter="lora").save(tmp_path / "lora")
    assert "adapter=full does not go with" in refusal(str(tmp_path / "lora"), adapter="full")
    (tmp_path / "lora" / "adapter_config.json").write_text("{")
    assert "cannot be read as JSON" in refusal(str(tmp_path / "lora"))


# --- reference (H40, H41)
