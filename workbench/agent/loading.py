"""From the setting `policy=…` to a checked model and tokenizer: embedded, hub id, folder, adapter folder or GGUF file.

Everything that can be wrong with a model is found here, before the first step, and said in one sentence.
"""

from __future__ import annotations

import functools
import json
import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate import PartialState
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig

from workbench.config import ROOT, Config
from workbench.types import WorkbenchError

log = logging.getLogger(__name__)

TINY = ROOT / "data" / "policy"
"""The embedded policy, in Hugging Face format."""
SMALL = 100_000_000
"""Below this many parameters a policy is trained in full and in fp32 (our choice)."""
END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>", "<|end_of_turn|>", "</s>")
"""Tokens that end an answer when the tokenizer knows them as special and the chat template writes them."""
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_HUB_TIMEOUT_S = 10.0
_PROBE_MARGIN = 1.1
"""bf16 must be this much faster than fp32 to be taken: below it the exactness of fp32 is worth more (our choice)."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a policy's files are."""

    name: str
    """The setting as the user wrote it."""
    base: str
    """Folder or hub id of the full model."""
    gguf: str | None = None
    """File name below `base` when the model is a GGUF file."""
    adapter: Path | None = None
    """Folder of a LoRA adapter that lies on top of the base."""
    offline: bool = False
    """The hub cannot be reached, and its files are taken from the cache."""

    @property
    def origin(self) -> str:
        """What an adapter's config names as its base, so that `resolve` finds it again."""
        return str(Path(self.base) / self.gguf) if self.gguf else self.base

    @property
    def keywords(self) -> dict[str, Any]:
        """Arguments common to every `from_pretrained`: code that comes with a checkpoint is never run."""
        gguf = {"gguf_file": self.gguf} if self.gguf else {}
        return {"trust_remote_code": False, "local_files_only": self.offline, **gguf}


def resolve(policy: str) -> Source:
    """Find the files behind `policy`; `WorkbenchError` when a path holds no model. A hub id is not checked here."""
    if policy == "tiny":
        if not (TINY / "config.json").is_file():
            raise WorkbenchError(f"policy=tiny: {TINY} holds no model, run `workbench warmstart` to build it.")
        return Source(policy, str(TINY))
    path = Path(policy).expanduser()
    if path.is_file():
        if path.suffix != ".gguf":
            raise WorkbenchError(f"policy={policy!r} is no model file: expected a .gguf file or a folder.")
        return Source(policy, str(path.parent.resolve()), gguf=path.name)
    if path.is_dir():
        return _resolve_folder(policy, path.resolve())
    if policy.endswith(".gguf") or not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", policy):
        raise WorkbenchError(
            f"policy={policy!r} is neither a file, a folder nor a hub id: check the path, or use policy=tiny."
        )
    return Source(policy, policy)


def _resolve_folder(policy: str, path: Path) -> Source:
    if (path / "adapter_config.json").is_file():
        adapter = _json(path / "adapter_config.json")
        if (kind := adapter.get("peft_type", "LORA")) != "LORA":
            raise WorkbenchError(
                f"policy={policy!r} is an adapter of the kind {kind}: expected LORA, merge it into its model first."
            )
        base = adapter.get("base_model_name_or_path")
        if not base or Path(base) == path:
            raise WorkbenchError(f"policy={policy!r}: adapter_config.json must name its base_model_name_or_path.")
        under = resolve(base)
        if under.adapter is not None:
            raise WorkbenchError(f"policy={policy!r}: its base {base!r} is an adapter too, expected a full model.")
        return Source(policy, under.base, under.gguf, adapter=path)
    if (path / "config.json").is_file():
        return Source(policy, str(path))
    ggufs = sorted(path.glob("*.gguf"))
    if len(ggufs) == 1:
        return Source(policy, str(path), gguf=ggufs[0].name)
    found = f"{len(ggufs)} .gguf files" if ggufs else "none of them"
    raise WorkbenchError(
        f"policy={policy!r} is no model: expected config.json, adapter_config.json or exactly one .gguf file "
        f"in the folder, found {found}."
    )


def reach_hub(source: Source) -> Source:
    """The source as it can be loaded now, for a hub id by one short request: the loaders try again for a minute.

    Raises WorkbenchError when the hub has no such model, or cannot be reached and the cache has none of it.
    """
    if Path(source.base).is_dir():
        return source
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    cached = False
    try:
        cached = isinstance(try_to_load_from_cache(source.base, "config.json"), str)
        HfApi().model_info(source.base, timeout=_HUB_TIMEOUT_S)
    except GatedRepoError:
        reason = "it is gated: accept its terms on the hub and set HF_TOKEN"
    except RepositoryNotFoundError:
        reason = "the hub has no such model, or it is private: check the name, or set HF_TOKEN"
    except HFValidationError:
        reason = "it is not well formed: expected owner/name"
    except Exception as error:  # no network, a proxy, a time-out, HF_HUB_OFFLINE
        if cached:
            log.info("the hub cannot be reached (%s): %s is taken from the cache", error, source.base)
            return replace(source, offline=True)
        reason = (
            f"the hub cannot be reached ({_first_line(error)}) and the cache does not hold it: "
            "use a folder, a .gguf file or policy=tiny"
        )
    else:
        return source
    raise WorkbenchError(f"policy={source.name!r} is neither a file nor a folder, and as a hub id {reason}.")


def _first_line(error: Exception) -> str:
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line), type(error).__name__).rstrip(".")


def _json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise WorkbenchError(f"{path} cannot be read as JSON ({error}): restore the file.") from None


@contextmanager
def one_sentence(source: Source) -> Iterator[None]:
    """Turn whatever the loaders raise into one `WorkbenchError` with the policy's name and the cause's first line."""
    try:
        with quiet():
            yield
    except WorkbenchError:
        raise
    except Exception as error:  # the loaders raise OSError, ValueError, KeyError, SafetensorError, HTTP errors, …
        log.debug("loading %s failed", source.name, exc_info=True)
        raise WorkbenchError(
            f"policy={source.name!r} cannot be loaded ({_first_line(error)}): "
            "expected a causal language model in Hugging Face format or GGUF."
        ) from error


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars and reports: they write to whatever cell or terminal is in front, also from a thread."""
    from transformers import modeling_gguf_pytorch_utils as gguf_loader
    from transformers.utils import logging as transformers_logging

    shown = transformers_logging.is_progress_bar_enabled()
    bar = gguf_loader.tqdm
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    gguf_loader.tqdm = functools.partial(bar, disable=True)
    try:
        yield
    finally:
        gguf_loader.tqdm = bar
        transformers_logging.set_verbosity(verbosity)
        if shown:
            transformers_logging.enable_progress_bar()


def load_tokenizer(source: Source) -> Any:
    """The tokenizer, with a pad token; refused when it has no chat template or no end-of-sequence token."""
    own = source.adapter is not None and (source.adapter / "tokenizer_config.json").is_file()
    with one_sentence(source):
        if own:
            tokenizer = AutoTokenizer.from_pretrained(str(source.adapter), trust_remote_code=False)
        else:
            tokenizer = AutoTokenizer.from_pretrained(source.base, **source.keywords)
    if not tokenizer.chat_template:
        raise WorkbenchError(
            f"policy={source.name!r} has a tokenizer without chat template: use an instruction-tuned model, "
            "or put a chat_template.jinja into its folder."
        )
    if tokenizer.eos_token_id is None:
        raise WorkbenchError(
            f"policy={source.name!r} has a tokenizer without eos token, so no answer could end: "
            "set eos_token in its tokenizer_config.json."
        )
    if tokenizer.pad_token_id is None:
        # Masks come from lengths, never from token values, so that any id does as filler.
        tokenizer.pad_token = tokenizer.eos_token
        log.info("the tokenizer of %s has no pad token: padding with eos %r", source.name, tokenizer.eos_token)
    return tokenizer


def load_config(source: Source, tokenizer: Any) -> Any:
    """The model's config; refused for mixtures of experts, encoder-decoders, and vocabularies below the tokenizer's."""
    with one_sentence(source):
        config = AutoConfig.from_pretrained(source.base, **source.keywords)
    text = config.get_text_config()
    experts = _experts(text)
    if experts > 1:
        raise WorkbenchError(
            f"policy={source.name!r} is a mixture of {experts} experts, which is not supported: the experts chosen in "
            "sampling and in training can differ, so the importance ratios would be wrong; use a dense model."
        )
    if getattr(config, "is_encoder_decoder", False):
        raise WorkbenchError(f"policy={source.name!r} is an encoder-decoder: expected a causal language model.")
    if len(tokenizer) > text.vocab_size:
        raise WorkbenchError(
            f"policy={source.name!r} does not fit its tokenizer: the model knows {text.vocab_size} tokens, the "
            f"tokenizer {len(tokenizer)}; use the tokenizer that the model was trained with."
        )
    return config


def _experts(text: Any) -> int:
    """How many experts a layer of the model chooses from; at most 1 in a dense model."""
    if not getattr(text, "is_moe", True):  # Doge names a number of experts also where it has none
        return 0
    places = (text, getattr(text, "ffn_config", None))  # DBRX keeps its number one level down
    return max(getattr(place, name, None) or 0 for place in places for name in _EXPERTS)


def count_parameters(source: Source, config: Any) -> int:
    """Parameters of the model that `config` describes, tied weights once, without allocating it."""
    with one_sentence(source), torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    return sum(parameter.numel() for parameter in model.parameters())


def load_model(source: Source, config: Any, dtype: torch.dtype, device: torch.device) -> Any:
    """The base model on `device` in `dtype`, without dropout and with a generation config that holds token ids only."""
    keywords = dict(source.keywords, config=config, dtype=dtype)
    if source.gguf:
        keywords["quantization_config"] = GgufConfig(dequantize=True)  # packed blocks have no gradient
    with one_sentence(source):
        model, info = AutoModelForCausalLM.from_pretrained(source.base, output_loading_info=True, **keywords)
    broken = sorted(info["missing_keys"]) + sorted(str(key) for key in info["mismatched_keys"])
    if broken:
        raise WorkbenchError(
            f"policy={source.name!r} is incomplete: {len(broken)} weights are missing or of another shape, such as "
            f"{broken[0]}; fetch the checkpoint again."
        )
    if source.gguf:
        model.hf_quantizer = None  # the weights are plain tensors by now, and can be trained and saved as such
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
    ids = model.generation_config
    # A checkpoint's sampling fields (top_k, repetition_penalty, …) must reach neither our sampler nor a saved policy.
    model.generation_config = GenerationConfig(
        bos_token_id=ids.bos_token_id, eos_token_id=ids.eos_token_id, pad_token_id=ids.pad_token_id
    )
    disable_dropout(model)
    return model.to(device).eval()


def disable_dropout(model: nn.Module) -> None:
    """Set every dropout probability to 0: sampling and training must see the same network, or the ratio is not 1."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if isinstance(value, float) and ("dropout" in name or name == "layerdrop"):
                setattr(module, name, 0.0)


def choose_device(name: str) -> torch.device:
    """`auto`: what accelerate finds for this process; else as named, refused when it is not there."""
    if name == "auto":
        return PartialState().device
    try:
        device = torch.device(name)
    except RuntimeError:
        raise WorkbenchError(f"device={name!r} is no device: expected auto, cpu, cuda, cuda:N or mps.") from None
    present = {
        "cpu": 1,
        "cuda": torch.cuda.device_count() if torch.cuda.is_available() else 0,
        "mps": int(torch.backends.mps.is_available()),
    }.get(device.type, 0)
    if (device.index or 0) >= present:
        raise WorkbenchError(f"device={name!r} is not available on this machine: use device=auto or device=cpu.")
    return device


def choose_dtype(
    config: Config, parameters: int, hidden: int, device: torch.device, full: bool
) -> tuple[torch.dtype, str]:
    """(dtype, why): fp32 for small policies and full fine-tuning (AdamW's steps vanish in bf16 weights), bf16 on CUDA,
    and for LoRA on a CPU what a probe finds faster (our choice)."""
    if config.dtype != "auto":
        return getattr(torch, config.dtype), "as set"
    if parameters < SMALL:
        return torch.float32, f"below {SMALL // 1_000_000} M parameters"
    if full:
        return torch.float32, "full fine-tuning"
    if device.type == "cuda":
        supported = torch.cuda.is_bf16_supported()
        return (torch.bfloat16, "CUDA") if supported else (torch.float32, "this GPU has no bf16")
    if device.type == "cpu":
        fp32, bf16 = (_probe(hidden, dtype) for dtype in (torch.float32, torch.bfloat16))
        log.info("dtype probe, %d wide: fp32 %.2f ms, bf16 %.2f ms", hidden, fp32 * 1e3, bf16 * 1e3)
        if fp32 > _PROBE_MARGIN * bf16:
            return torch.bfloat16, "a probe found bf16 faster"
        return torch.float32, "a probe found fp32 as fast"
    return torch.float32, f"{device.type} runs fp32"


def _probe(hidden: int, dtype: torch.dtype, seconds: float = 0.25) -> float:
    """Median seconds of one MLP-shaped pair of products, at decoding and at training height; at most ~`seconds`."""
    with torch.inference_mode():
        wide = torch.ones(hidden, 4 * hidden, dtype=dtype)
        inputs = [torch.ones(rows, hidden, dtype=dtype) for rows in (32, 256)]
        times: list[float] = []
        start = time.perf_counter()
        while len(times) < 3 or (len(times) < 50 and time.perf_counter() - start < seconds):
            begin = time.perf_counter()
            for x in inputs:
                nn.functional.linear(x @ wide, wide)
            times.append(time.perf_counter() - begin)
    return sorted(times[1:])[len(times[1:]) // 2]


def stop_ids(tokenizer: Any, model: Any) -> tuple[int, ...]:
    """Ids that end an action: eos of tokenizer and generation config, and end-of-turn tokens the template writes."""
    found = {tokenizer.eos_token_id}
    configured = model.generation_config.eos_token_id
    found.update(configured if isinstance(configured, list) else [configured])
    special = set(tokenizer.all_special_tokens) | {str(token) for token in tokenizer.added_tokens_decoder.values()}
    template = str(tokenizer.chat_template)
    ends = [token for token in END_OF_TURN if token in special and token in template]
    found.update(tokenizer.convert_tokens_to_ids(token) for token in ends)
    return tuple(sorted(index for index in found if index is not None))


def versions() -> dict[str, str]:
    """Versions of what decides the bits of a run."""
    import accelerate
    import peft

    return {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "peft": peft.__version__,
        "accelerate": accelerate.__version__,
    }
