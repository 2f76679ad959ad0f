"""`workbench gpu-check`: does the policy compute on this GPU what it should, and how fast?

No executor, no network: equality of the shared-prefix path with transformers' own in fp32, sampling against training in
the dtype of the run, some steps, and the same steps as other families take them: through transformers' own modules, one
prompt after the other. `--device cpu` checks the same where there is no GPU.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from workbench.cli.bench import Measured, Tell, describe_machine
from workbench.cli.bench_work import Workload, default_policy
from workbench.sandbox import workfolder
from workbench.types import WorkbenchError

LIMIT = 1e-4
"""On what may differ in fp32: log-probabilities in nats, gradients relative to the largest."""
ROUNDINGS = 2.0
"""By how many times what transformers' own modules lose to fp32, in the dtype of the run, sampling may differ from
training and the gradient from that in fp32 (our choice; errors that are independent of one another: 1.4)."""
TEMPERATURE = 0.8
SHAPE = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
"""Of SmolLM2-135M: what is built with random weights where the pretrained model is not installed."""


def gpu_check(
    device: str, policy: str | None, steps: int, plain_steps: int, work: Workload, tell: Tell
) -> dict[str, Any]:
    """{machine, workload, results}; raises WorkbenchError without such a device, and where results differ."""
    _check_device(device)
    with workfolder.scratch("gpu-check") as folder:
        work = replace(work, policy=policy or _big_policy(folder, tell), device=device)
        tell(f"equality in fp32 on {device}")
        results = _agreement(work)
        tell(", ".join(f"{name} {measured.values[0]:.1e}" for name, measured in results.items()))
        for name, measured in results.items():
            limit = LIMIT
            if name.endswith("_gap"):
                limit += ROUNDINGS * results[name.replace("_gap", "_rounding")].values[0]
            if not name.endswith("_rounding") and not measured.values[0] < limit:
                raise WorkbenchError(
                    f"{name} is {measured.values[0]:.2g} on {device}, expected below {limit:.2g}: "
                    "please report it with this machine's name and the versions of torch and its driver."
                )
        facts, times = _steps(work, steps, plain_steps, tell)
    results |= times
    machine = describe_machine() | {name: facts.pop(name) for name in ("device", "torch", "dtype", "kernel")}
    return {
        "machine": machine,
        "workload": work.described() | facts,
        "results": {name: measured.as_dict() for name, measured in results.items()},
    }


def _check_device(device: str) -> None:
    """Before anything is built. Raises WorkbenchError for what is no device, or is not there."""
    if not re.fullmatch(r"cpu|cuda(:[0-9]+)?", device):
        raise WorkbenchError(
            f"--device {device!r} is not accepted: expected cuda, cuda:N or cpu; "
            "give --device cpu where there is no GPU."
        )
    if device == "cpu":
        return
    import torch

    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not there:
        raise WorkbenchError(
            f"--device {device}: there is no CUDA device; run it on a machine that has one, or with --device cpu."
        )
    if int(device.partition(":")[2] or 0) >= there:
        raise WorkbenchError(f"--device {device}: expected one of cuda:0 to cuda:{there - 1}, which are there.")


def _big_policy(folder: Path, tell: Tell) -> str:
    found = default_policy()
    if found != "tiny":
        return found
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from workbench.agent.loading import TINY, quiet

    tell("building a model of SmolLM2-135M's shape with random weights")
    torch.manual_seed(0)
    with quiet():
        LlamaForCausalLM(LlamaConfig(**SHAPE)).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (TINY / name).is_file():
            shutil.copy(TINY / name, folder)
    return str(folder)


def _agreement(work: Workload) -> dict[str, Measured]:
    """Largest differences between both paths in fp32, and how far the dtype of the run is from it."""
    from workbench.agent.llama import body_of
    from workbench.agent.policy import load_policy

    policy = load_policy(replace(work, dtype="float32").config())
    if body_of(policy.model) is None:
        raise WorkbenchError(
            f"policy={work.policy!r} does not share prefixes on {policy.device}, so there is nothing to compare: "
            "take a policy of Llama's shape."
        )
    rows, recorded = _sampled(policy, work)
    ours, gradient = _scored(policy, rows)
    _use_plain(policy)
    theirs, wanted = _scored(policy, rows)
    del policy
    policy = load_policy(work.config())
    drawn, sampled = _sampled(policy, work)
    trained = _scored(policy, drawn)[0]
    turned = _scored(policy, rows)[1]
    _use_plain(policy)
    rounded, turned_by_rounding = _scored(policy, rows)
    return {
        "logprob_error": Measured([float((ours - theirs).abs().max())], "nats"),
        "sampler_error": Measured([float((recorded - theirs).abs().max())], "nats"),
        "gradient_error": Measured([float((gradient - wanted).abs().max() / wanted.abs().max())], "of the largest"),
        "sampler_gap": Measured([float((trained - sampled).abs().mean())], "nats"),
        "sampler_rounding": Measured([float((rounded - theirs).abs().mean())], "nats"),
        "gradient_gap": Measured([_turn(turned, wanted)], "1 - cosine"),
        "gradient_rounding": Measured([_turn(turned_by_rounding, wanted)], "1 - cosine"),
    }


def _turn(gradient: Any, wanted: Any) -> float:
    """How far one points away from the other: 1 - cosine."""
    gradient, wanted = gradient.double(), wanted.double()  # millions of numbers add up
    return float(1 - gradient @ wanted / (gradient.norm() * wanted.norm()))


def _scored(policy: Any, rows: Sequence[tuple[list[int], tuple[int, ...]]]) -> tuple[Any, Any]:
    """Log-probabilities of completions' tokens, and the gradient of their sum in one row of fp32, both on the CPU."""
    import torch

    from workbench.agent.logprobs import completion_logprobs

    policy.model.zero_grad()
    values, mask, _ = completion_logprobs(policy.model, rows, TEMPERATURE)
    values[mask].sum().backward()
    gradient = torch.cat([p.grad.float().cpu().flatten() for p in policy.trainable() if p.grad is not None])
    return values[mask].detach().cpu(), gradient


def _sampled(policy: Any, work: Workload) -> tuple[list[tuple[list[int], tuple[int, ...]]], Any]:
    """(prompt, completion)s of ragged groups and stages, by an adapter that does something, and their recorded
    log-probabilities."""
    import torch

    from workbench.agent.generate import HFGenerator

    with torch.no_grad():
        for parameter in policy.trainable():
            parameter.add_(0.01 * torch.linspace(-1, 1, parameter.numel(), device=parameter.device).view_as(parameter))
    policy.stop_ids = ()
    prompts = replace(work, prompts=2, prompt_tokens=96).prompt_ids(0, int(policy.model.config.vocab_size))
    prompts.append([*prompts[0], *prompts[1][:40]])
    seeds = [[10 * i + j for j in range(3)] for i in range(len(prompts))]
    actions = HFGenerator(policy).generate(prompts, 3, temperature=TEMPERATURE, max_new_tokens=12, seeds=seeds)
    rows = [(prompt, action.token_ids) for prompt, row in zip(prompts, actions, strict=True) for action in row]
    return rows, torch.tensor([value for row in actions for action in row for value in action.sampler_logprobs])


def _use_plain(policy: Any) -> None:
    """From now on by transformers' own modules."""
    from workbench.agent.attention import unwrapped

    unwrapped(policy.model).set_attn_implementation("sdpa")


def _steps(work: Workload, steps: int, plain_steps: int, tell: Tell) -> tuple[dict[str, Any], dict[str, Measured]]:
    from workbench.agent.generate import HFGenerator
    from workbench.agent.kernels import kernel_dtype, kernel_of
    from workbench.cli.bench_ours import Ours

    ours = Ours(work)
    facts = ours.facts()
    weight = next(ours.policy.model.parameters())
    kernel = type(kernel_of(weight.device.type, kernel_dtype(weight))).__name__.lower()
    results: dict[str, Measured] = {}
    for name, count in (("", steps), ("plain_", plain_steps)):
        if name:
            _use_plain(ours.policy)
            ours.generator = HFGenerator(ours.policy)  # without the weights laid out and the prompts kept
        start, rounds = time.perf_counter(), []
        ours.step(-1)  # warm
        for number in range(count):
            rounds.append(ours.step(number))
            if number in (0, count // 2, count - 1):
                left = (time.perf_counter() - start) / (number + 2) * (count - number - 1)
                tell(
                    f"{name or 'shared_'}step {number + 1} of {count}: {_seconds(rounds[-1]):.3g} s, {left:.0f} s left"
                )
        spent = [_seconds(each) for each in rounds]
        results[f"{name}step_s"] = Measured(spent, "s")
        results[f"{name}generation_tokens_per_s"] = Measured(
            [work.tokens / each["generation_s"] for each in rounds], "1/s"
        )
        results[f"{name}training_tokens_per_s"] = Measured([work.tokens / each["training_s"] for each in rounds], "1/s")
        peaks = [max(each["generation_mb"], each["training_mb"]) for each in rounds]
        results[f"{name}peak_mb"] = Measured([max(peaks)], "MB")
    results["ratio"] = Measured([median(results["plain_step_s"].values) / median(results["step_s"].values)], "x")
    return {"kernel": kernel} | {name: facts[name] for name in ("device", "torch", "dtype", "parameters")}, results


def _seconds(times: dict[str, float]) -> float:
    return times["generation_s"] + times["training_s"]
