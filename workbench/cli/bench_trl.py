"""TRL's side of the model suites: `GRPOTrainer` on the same model, tokens, adapter and dtype.

`trainer.train()` runs as it is; what is measured lies between its callbacks `on_step_begin` and `on_step_end`: sampling
through `transformers.generate`, rewards, advantages, all micro-batches and the optimizer. Waiting for a turn happens in
`on_step_end`, so outside. Replaced is only what would differ from our workload or cost TRL time that we do not spend:

- `_tokenize_prompts` hands over the random ids of the round;
- `_generate` is timed: that is generation; the rest of the step is training;
- end-of-text ids are emptied, so that every completion has its full length without a logits processor;
- where only training is measured, the completions sampled first come back in no time.

The C library keeps its default way with freed memory, where ours has it kept (`agent/memory.py`).
No checkpointing, no KL, no logging, no saving, no evaluation, no workers; SDPA; the same AdamW. bf16 weights are tried
with autocast, TRL's default, and without it, as ours run.
"""

from __future__ import annotations

import logging
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

from workbench.cli.bench_sides import memory_mb, peak_mb, reset_peak, resident_mb, settled
from workbench.cli.bench_work import LEARNING_RATE, Workload

MICRO_BATCHES = (2, 4, 8, 16)


def micro_batches(rows: int) -> list[int]:
    """Rows per micro-batch that are tried: those that divide a step, or the whole step where none does."""
    return [size for size in MICRO_BATCHES if rows % size == 0] or [rows]


def serve(pipe: Connection, work: Workload) -> None:
    """Answers {do, number, micro, autocast?, work?} like `bench_ours.serve`; only `do` and `number` may change without
    that a new trainer is made."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    peer = Peer(work, pipe)
    pipe.send(("facts", peer.facts()))
    peer.receive()
    with tempfile.TemporaryDirectory() as folder:
        while peer.message is not None:
            trainer = peer.trainer(folder)
            if peer.message["do"] == "generation":
                peer.generate(trainer)
            else:
                peer.train(trainer)


class Peer:
    """The model, and the message that is being answered: its trainer is told nothing else from outside."""

    def __init__(self, work: Workload, pipe: Connection) -> None:
        import torch

        from workbench.agent import loading

        self.work, self.pipe = work, pipe
        self.message: dict[str, Any] | None = None
        self.kept: Any = None
        self.times: dict[str, float] = {}
        config = work.config()
        torch.set_num_threads(config.threads)
        source = loading.reach_hub(loading.resolve(work.policy))
        self.device = loading.choose_device(config.device)
        self.tokenizer = loading.load_tokenizer(source)
        settings = loading.load_config(source, self.tokenizer)
        self.base = loading.load_model(source, settings, getattr(torch, work.dtype), self.device)
        self.model = self._adapted(config.lora_rank) if work.adapter == "lora" else self.base.requires_grad_(True)
        self.starts: list[float] = []
        self.base.base_model.register_forward_pre_hook(lambda *_: self.starts.append(time.perf_counter()))

    def _adapted(self, rank: int) -> Any:
        """The adapter of `load_policy`: TRL takes it as it would make it from the same configuration."""
        import torch
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(0)
        return get_peft_model(
            self.base,
            LoraConfig(
                r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"
            ),
        )

    def facts(self) -> dict[str, Any]:
        import torch

        return {
            "trl": import_module("trl").__version__,
            "dtype": str(self.base.dtype).removeprefix("torch."),
            "attention": self.base.config._attn_implementation,
            "threads": torch.get_num_threads(),
            "loaded_mb": resident_mb(),
            "memory_mb": memory_mb(),
            **self.arguments(self.work.rows),
        }

    def arguments(self, micro: int, autocast: bool = False) -> dict[str, Any]:
        """What GRPOConfig is told beyond its defaults."""
        work = self.work
        return {
            "per_device_train_batch_size": micro,
            "gradient_accumulation_steps": work.rows // micro,
            "num_generations": work.group_size,
            "max_completion_length": work.completion_tokens,
            "num_iterations": 1,
            "beta": 0.0,
            "temperature": 1.0,
            "gradient_checkpointing": False,
            "bf16": autocast,
            "learning_rate": LEARNING_RATE,
            "lr_scheduler_type": "constant",
            "optim": "adamw_torch_fused",
            "adam_beta1": 0.9,
            "adam_beta2": 0.95,
            "weight_decay": 0.0,
            "max_grad_norm": 1.0,
            "shuffle_dataset": False,
            "dataloader_num_workers": 0,
            "dataloader_pin_memory": self.device.type == "cuda",
            "logging_strategy": "no",
            "save_strategy": "no",
            "eval_strategy": "no",
            "report_to": "none",
            "disable_tqdm": True,
            "use_cpu": self.device.type == "cpu",
            "max_steps": 1_000_000,
            "seed": work.seed,
            "generation_kwargs": {"eos_token_id": None, "use_cache": True},
        }

    def trainer(self, folder: str) -> Any:
        """A fresh trainer around the same weights, as the message wants it.

        TRL is an extra, which is why it is imported by name.
        """
        import random

        from accelerate.state import AcceleratorState
        from transformers import PrinterCallback

        trl, datasets = import_module("trl"), import_module("datasets")
        assert self.message is not None
        for module in (self.base, self.model):  # each trainer wraps the forward once more
            vars(module).pop("forward", None)
            vars(module).pop("_original_forward", None)
        AcceleratorState._reset_state()  # it keeps whether there is autocast
        draw = random.Random(self.work.seed)
        trainer: Any = trl.GRPOTrainer(
            model=self.model,
            reward_funcs=lambda completions, **_: [draw.gauss(0, 1) for _ in completions],
            args=trl.GRPOConfig(
                output_dir=folder, **self.arguments(self.message["micro"], self.message.get("autocast", False))
            ),
            train_dataset=datasets.Dataset.from_dict({"prompt": [str(place) for place in range(self.work.prompts)]}),
            processing_class=self.tokenizer,
        )
        trainer.remove_callback(PrinterCallback)
        trainer.eos_token_ids = [-1]
        trainer._tokenize_prompts = self._prompts
        sample = trainer._generate
        trainer._generate = lambda prompts: self._timed(sample, prompts)
        return trainer

    def receive(self) -> bool:
        """Take the next message; whether the same trainer can answer it."""
        before, self.message = self.message, self.pipe.recv()
        work = self.work if self.message is None else self.message.get("work", self.work)
        if work != self.work:
            self.work, self.kept = work, None
        return _trainer_of(before) == _trainer_of(self.message)

    def generate(self, trainer: Any) -> None:
        """Answer messages that want completions only: training mode and gradients as in a step."""
        prompts = [str(place) for place in range(self.work.prompts) for _ in range(self.work.group_size)]
        trainer.model.train()
        while True:
            reset_peak()
            trainer._generate(prompts)
            self.pipe.send(("times", self.times))
            if not self.receive():
                return

    def train(self, trainer: Any) -> None:
        """Answer messages that want a step."""
        from transformers import TrainerCallback

        peer = self

        class Turns(TrainerCallback):
            def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                peer.times = {}
                reset_peak()
                settled()
                self.start = time.perf_counter()

            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                settled()
                spent = time.perf_counter() - self.start - peer.times.get("generation_s", 0.0)
                peer.pipe.send(("times", peer.times | {"training_s": spent, "training_mb": peak_mb()}))
                control.should_training_stop = not peer.receive()

        trainer.add_callback(Turns())
        trainer.train()

    def _prompts(self, prompts: list[str]) -> tuple[list[list[int]], None, dict[str, Any]]:
        assert self.message is not None
        ids = self.work.prompt_ids(self.message["number"], int(self.base.config.get_text_config().vocab_size))
        return [ids[int(place)] for place in prompts], None, {}

    def _timed(self, sample: Callable[[list[str]], Any], prompts: list[str]) -> Any:
        """`_generate`, timed to the end, and to the second call of the model: after the first token of every row."""
        assert self.message is not None
        if self.message["do"] == "training" and self.kept is not None:
            return self.kept
        self.starts.clear()
        settled()
        start = time.perf_counter()
        self.kept = sample(prompts)
        settled()
        self.times = {"generation_s": time.perf_counter() - start, "generation_mb": peak_mb()}
        if len(self.starts) > 1:
            self.times["first_s"] = self.starts[1] - start
        if any(len(row) != self.work.completion_tokens for row in self.kept[1]):
            raise RuntimeError("TRL's completions do not have their full length")
        reset_peak()
        return self.kept


def _trainer_of(message: dict[str, Any] | None) -> tuple[Any, ...] | None:
    """What a message asks of its trainer; None for the message that ends it all."""
    if message is None:
        return None
    return message["do"] == "generation", message["micro"], message.get("autocast"), message.get("work")
