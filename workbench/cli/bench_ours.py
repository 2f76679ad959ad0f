"""Our side of the model suites: `HFGenerator.generate` and `update`, as the trainer calls them."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection
from typing import Any

from workbench.cli.bench_sides import peak_mb, reset_peak, resident_mb, settled
from workbench.cli.bench_work import LEARNING_RATE, Model, Workload


def serve(pipe: Connection, work: Workload) -> None:
    """Answers {do, number, work?} with {generation_s, first_s, training_s, generation_mb, training_mb}, as far as done.

    `do`: "generation", "training" (on the completions sampled last), "step", "first" (the time to the first token of
    every row), or "limits".
    """
    ours = Ours(work)
    pipe.send(("facts", ours.facts()))
    while (message := pipe.recv()) is not None:
        ours.work = message.get("work", ours.work)
        pipe.send(("times", getattr(ours, message["do"])(message["number"])))


class Ours:
    """A policy with its generator and optimizer."""

    def __init__(self, work: Workload) -> None:
        from workbench.agent.generate import HFGenerator
        from workbench.agent.policy import load_policy
        from workbench.learning.update import make_optimizer

        self.work = work
        self.policy = load_policy(work.config())
        work.check(self.policy.max_positions)
        self.policy.stop_ids = ()  # every completion has its full length
        self.generator = HFGenerator(self.policy)
        self.optimizer = make_optimizer(self.policy, LEARNING_RATE)
        self.sampled: list[Any] = []

    def facts(self) -> dict[str, Any]:
        import torch

        policy = self.policy
        return {
            "dtype": str(policy.dtype).removeprefix("torch."),
            "dtype_reason": policy.dtype_reason,
            "adapter": policy.adapter,
            "parameters": policy.parameters,
            "device": str(policy.device),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "max_positions": policy.max_positions,
            "loaded_mb": resident_mb(),
            "model": describe(policy.model),
        }

    def generation(self, number: int, new_tokens: int | None = None) -> dict[str, float]:
        work = self.work
        prompts = work.prompt_ids(number, self._vocabulary())
        seeds = [[work.group_size * i + j for j in range(work.group_size)] for i in range(work.prompts)]
        self._touch()
        reset_peak()
        settled()
        start = time.perf_counter()
        actions = self.generator.generate(
            prompts,
            work.group_size,
            temperature=1.0,
            max_new_tokens=new_tokens or work.completion_tokens,
            seeds=seeds,
        )
        settled()
        spent = time.perf_counter() - start
        if new_tokens is None:
            self.sampled = [(prompt, row) for prompt, rows in zip(prompts, actions, strict=True) for row in rows]
            assert all(len(row.token_ids) == work.completion_tokens for _, row in self.sampled)
        return {"generation_s": spent, "generation_mb": peak_mb()}

    def first(self, number: int) -> dict[str, float]:
        return {"first_s": self.generation(number, new_tokens=1)["generation_s"]}

    def training(self, number: int) -> dict[str, float]:
        from workbench.learning.batch import Sample
        from workbench.learning.update import update

        values = self.work.advantages(number)
        config = self.work.config()
        reset_peak()
        settled()
        start = time.perf_counter()
        samples = [
            Sample(tuple(prompt), row.token_ids, row.sampler_logprobs, value, self.policy.version, str(place))
            for place, ((prompt, row), value) in enumerate(zip(self.sampled, values, strict=True))
        ]
        metrics = update(self.policy, self.optimizer, samples, config)
        settled()
        spent = time.perf_counter() - start
        assert metrics["skipped_updates"] == 0
        return {"training_s": spent, "training_mb": peak_mb()}

    def step(self, number: int) -> dict[str, float]:
        return self.generation(number) | self.training(number)

    def limits(self, number: int) -> dict[str, float]:
        from workbench.cli.bench_limit import measure_machine

        return measure_machine(self.policy.dtype, self.policy.device)

    def _touch(self) -> None:
        """Weights are written to, as by an update before each step: nothing laid out or read before it is used."""
        import torch

        with torch.no_grad():
            next(weight for weight in self.policy.model.parameters() if weight.requires_grad).mul_(1)

    def _vocabulary(self) -> int:
        return int(self.policy.model.config.get_text_config().vocab_size)


def describe(model: Any) -> Model:
    """Counts of the weights and of keys and values, from the modules of a transformers model."""
    from torch import nn

    head = model.get_output_embeddings()
    inner = [module for module in model.modules() if isinstance(module, nn.Linear) and module is not head]
    weights = [module.weight for module in inner]
    kinds = {True: 0, False: 0}
    for weight in weights:
        kinds[weight.requires_grad] += weight.numel()
    text = model.config.get_text_config()
    wide = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    return Model(
        frozen=kinds[False],
        trained=kinds[True],
        head=head.weight.numel(),
        head_trained=head.weight.requires_grad,
        weight_bytes=sum(weight.numel() * weight.element_size() for weight in [*weights, head.weight]),
        cache_bytes=2 * text.num_hidden_layers * heads * wide * head.weight.element_size(),
    )
