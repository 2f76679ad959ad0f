"""The policy: one causal language model with its tokenizer, its trainable weights and the copy of where it started."""

from __future__ import annotations

import logging
import platform
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from workbench.agent import attention, loading
from workbench.agent.llama import body_of
from workbench.agent.memory import bound_kernel_caches, keep_freed_memory
from workbench.config import Config
from workbench.types import WorkbenchError

log = logging.getLogger(__name__)

CHECKPOINTING = 1_000_000_000
"""From this many parameters activations are recomputed in the backward pass, to save memory (our choice)."""

FIXED_DAY = "{%- macro strftime_now(form) -%}01 Jan 2026{%- endmacro -%}"
"""What a chat template that asks for the date is told: prompts must not change from day to day within a run."""


@dataclass(eq=False)
class Policy:
    """A model that samples and is trained. Build it with `load_policy`."""

    model: Any
    """A `PreTrainedModel`, or a `PeftModel` around one; in eval mode, without dropout in any mode."""
    tokenizer: Any
    source: loading.Source
    device: torch.device
    dtype: torch.dtype
    adapter: Literal["lora", "full"]
    parameters: int
    """Parameters of the base model, tied weights once."""
    stop_ids: tuple[int, ...]
    """Sampling one of these ends an action."""
    dtype_reason: str = "as set"
    version: int = 0
    """Optimizer updates since the start; the trainer raises it, the sampler writes it into every action."""
    _start: dict[str, torch.Tensor] | None = field(default=None, repr=False)
    """Trainable weights at the start of training; None while they need no copy (see `reference`)."""
    _fresh_adapter: bool = field(default=False, repr=False)

    @property
    def pad_id(self) -> int:
        """Filler of padded batches. Any id would do: masks come from lengths."""
        return int(self.tokenizer.pad_token_id)

    @property
    def max_positions(self) -> int | None:
        """Longest sequence the model is exact for, in tokens; None when it names no limit."""
        return attention.longest(self.model.config.get_text_config())

    # --- text and ids

    def prompt_ids(self, messages: Sequence[Mapping[str, str]] | str) -> list[int]:
        """Token ids of a chat, ready for the answer; a plain string is encoded without template.

        A model whose tokenizer begins texts with BOS gets exactly one, whether the template writes it or not.
        """
        if isinstance(messages, str):
            ids = self.tokenizer(messages, add_special_tokens=False)["input_ids"]
        else:
            ids = self.tokenizer.apply_chat_template(
                list(messages),
                add_generation_prompt=True,
                tokenize=True,
                return_dict=False,
                chat_template=FIXED_DAY + self.tokenizer.get_chat_template(),
            )
        bos = self.tokenizer.bos_token_id
        if bos is None:
            return list(ids)
        begin = 0
        while begin < len(ids) and ids[begin] == bos:
            begin += 1
        wanted = begin > 0 or self.tokenizer("")["input_ids"][:1] == [bos]
        return [bos] * wanted + list(ids[begin:])

    def count_tokens(self, text: str) -> int:
        """Length of a text in tokens, without special tokens."""
        return len(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        """The text of sampled ids, special tokens left out. One way: the text is never encoded again."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    # --- weights

    def trainable(self) -> Iterator[nn.Parameter]:
        """The parameters that training changes, always in the same order."""
        return (parameter for _, parameter in self._trainable())

    def _trainable(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name, p) for name, p in self.model.named_parameters() if p.requires_grad)

    def set_checkpointing(self, on: bool) -> None:
        """Recompute activations in the backward pass instead of keeping them: less memory, about a third more time."""
        model = attention.unwrapped(self.model)
        if on:
            model.activation_checkpointing_enable({"use_reentrant": False})
        else:
            model.activation_checkpointing_disable()
        # transformers checkpoints in training mode only; with every dropout at 0 the mode changes nothing else.
        self.model.train(on)

    @property
    def keeps_start(self) -> bool:
        """Whether `reference` needs no weights that are not in memory already."""
        return self._fresh_adapter or self._start is not None

    @contextmanager
    def reference(self) -> Iterator[Any]:
        """The model with the weights of the start of training, for reference log-probabilities; restored on exit.

        A fresh adapter is switched off, which costs no memory; otherwise the trained weights change places with a copy
        of the start, number by number. An adapter that was loaded always has that copy, full fine-tuning with `kl_coef`
        > 0 from the beginning. Without it (`keeps_start` is False) the start is read from the policy's files when first
        needed: a second model is built, and its weights stay in memory. Not for use inside a forward pass whose
        gradient is still to come.
        """
        if self._fresh_adapter:
            with self.model.disable_adapter():
                yield self.model
            return
        if self._start is None:
            self._start = self._read_start()
        swapped: list[tuple[torch.Tensor, torch.Tensor]] = []
        try:
            for name, parameter in self._trainable():
                _swap(parameter, self._start[name])
                swapped.append((parameter, self._start[name]))
            yield self.model
        finally:
            for pair in swapped:
                _swap(*pair)

    def _read_start(self) -> dict[str, torch.Tensor]:
        config = loading.load_config(self.source, self.tokenizer)
        base = loading.load_model(self.source, config, self.dtype, self.device)
        return {name: parameter.detach() for name, parameter in base.named_parameters()}

    def keep_start(self) -> None:
        """Copy the trainable weights as they are now: the reference."""
        self._start = {name: parameter.detach().clone() for name, parameter in self._trainable()}

    def save(self, folder: Path) -> None:
        """Write the trainable weights, bit for bit, and the tokenizer: a folder that `load_policy` also takes."""
        folder.mkdir(parents=True, exist_ok=True)
        options = {"save_embedding_layers": False} if self.adapter == "lora" else {}
        with loading.quiet():
            self.model.save_pretrained(folder, **options)
        self.tokenizer.save_pretrained(folder)

    def load(self, folder: Path) -> None:
        """Put weights that `save` wrote into this policy, in place, so that an optimizer keeps its parameters."""
        kind = "lora" if (folder / "adapter_config.json").is_file() else "full"
        if kind != self.adapter or not folder.is_dir():
            raise WorkbenchError(
                f"{folder} holds no saved weights of this policy: expected {self.adapter}, found "
                f"{kind if folder.is_dir() else 'no folder'}; resume with the settings of the run."
            )
        saved = self._read_adapter(folder) if kind == "lora" else self._read_full(folder)
        parameters = dict(self._trainable())
        if saved.keys() != parameters.keys() or any(saved[n].shape != p.shape for n, p in parameters.items()):
            raise WorkbenchError(f"{folder} holds weights of another policy than {self.source.name!r}: check the run.")
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(saved[name])

    def _read_full(self, folder: Path) -> dict[str, torch.Tensor]:
        source = loading.resolve(str(folder))
        config = loading.load_config(source, self.tokenizer)
        return dict(loading.load_model(source, config, self.dtype, torch.device("cpu")).named_parameters())

    def _read_adapter(self, folder: Path) -> dict[str, torch.Tensor]:
        from safetensors.torch import load_file

        with loading.one_sentence(self.source):
            saved = load_file(folder / "adapter_model.safetensors")
        # peft leaves the adapter's name out of the file.
        return {name: saved[key] for name, _ in self._trainable() if (key := name.replace(".default.", ".")) in saved}

    # --- what it runs on

    def environment(self) -> dict[str, Any]:
        """What decides the bits of a run, and the sampling fields in force: plain values, equal for equal set-ups."""
        return {
            **loading.versions(),
            "python": platform.python_version(),
            "processor": _processor(self.device),
            "device": str(self.device),
            "dtype": str(self.dtype).removeprefix("torch."),
            "dtype_reason": self.dtype_reason,
            "threads": torch.get_num_threads(),
            "attention": str(self.model.config._attn_implementation),
            "layers": "as weights" if body_of(self.model) else "as modules",
            "adapter": self.adapter,
            "parameters": self.parameters,
            "trainable_parameters": sum(parameter.numel() for parameter in self.trainable()),
            "stop_ids": list(self.stop_ids),
            "sampling": {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0},
        }


@torch.no_grad()
def _swap(one: torch.Tensor, other: torch.Tensor) -> None:
    kept = one.detach().clone()
    one.copy_(other)
    other.copy_(kept)


def load_policy(config: Config) -> Policy:
    """The policy that `config.policy` names, on `config.device` in `config.dtype`, with `config.threads` CPU threads.

    For the whole process it sets torch's number of threads, what the C library keeps of freed memory, and two variables
    of the environment that bound oneDNN's caches (agent/memory.py).

    Raises `WorkbenchError`, one sentence, for whatever is wrong with the model (agent/loading.py).
    """
    torch.set_num_threads(config.threads)
    keep_freed_memory()
    bound_kernel_caches()
    source = loading.reach_hub(loading.resolve(config.policy))
    device = loading.choose_device(config.device)
    tokenizer = loading.load_tokenizer(source)
    settings = loading.load_config(source, tokenizer)
    parameters = loading.count_parameters(source, settings)
    adapter = _choose_adapter(config, source, parameters)
    hidden = int(getattr(settings.get_text_config(), "hidden_size", 1024))
    dtype, reason = loading.choose_dtype(config, parameters, hidden, device, adapter == "full")
    model = loading.load_model(source, settings, dtype, device)
    attention.install(model)
    if adapter == "lora":
        model = _with_adapter(model, config, source)
    else:
        model.requires_grad_(True)
    policy = Policy(
        model=model,
        tokenizer=tokenizer,
        source=source,
        device=device,
        dtype=dtype,
        adapter=adapter,
        parameters=parameters,
        stop_ids=loading.stop_ids(tokenizer, model),
        dtype_reason=reason,
        _fresh_adapter=adapter == "lora" and source.adapter is None,
    )
    if source.adapter is not None or (adapter == "full" and config.kl_coef > 0):
        policy.keep_start()
    if parameters >= CHECKPOINTING:
        policy.set_checkpointing(True)
    log.info("policy %s: %d parameters, %s, %s on %s (%s)", source.name, parameters, adapter, dtype, device, reason)
    return policy


def default_learning_rate(policy: Policy) -> float:
    """AdamW step size by size and adapter (our choice; measured for the embedded policy only).

    LoRA: 1e-3 below 100 M parameters, 1e-4 from there, 2e-5 from 10 B.
    Full: 5e-4 below 20 M, 2e-5 below 500 M, else 1e-6.
    """
    size = policy.parameters
    if policy.adapter == "lora":
        return 1e-3 if size < loading.SMALL else 1e-4 if size < 10_000_000_000 else 2e-5
    return 5e-4 if size < 20_000_000 else 2e-5 if size < 500_000_000 else 1e-6


def _choose_adapter(config: Config, source: loading.Source, parameters: int) -> Literal["lora", "full"]:
    if source.adapter is not None:
        if config.adapter == "full":
            raise WorkbenchError(
                f"adapter=full does not go with policy={source.name!r}, which is a LoRA adapter: "
                "use adapter=lora, or merge it first."
            )
        return "lora"
    if config.adapter == "auto":
        return "full" if parameters < loading.SMALL else "lora"
    return config.adapter


def _with_adapter(model: Any, config: Config, source: loading.Source) -> Any:
    """LoRA on all linear layers, alpha = 2·rank, no dropout; or the saved adapter, made trainable again."""
    from peft import LoraConfig, PeftModel, get_peft_model

    with warnings.catch_warnings(), torch.random.fork_rng(), loading.one_sentence(source):
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)  # peft still asks for it
        if source.adapter is not None:
            adapted = PeftModel.from_pretrained(model, str(source.adapter), is_trainable=True)
        else:
            torch.manual_seed(0)  # the same start for every seed of a run
            adapted = get_peft_model(
                model,
                LoraConfig(
                    r=config.lora_rank,
                    lora_alpha=2 * config.lora_rank,
                    lora_dropout=0.0,
                    target_modules="all-linear",
                    task_type="CAUSAL_LM",
                ),
            )
    adapted.peft_config["default"].base_model_name_or_path = source.origin
    loading.disable_dropout(adapted)
    return adapted.eval()


def _processor(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    return f"{model}, {torch.backends.cpu.get_cpu_capability()}"
