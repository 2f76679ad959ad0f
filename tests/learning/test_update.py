"""The optimizer step on a real (tiny, random) model: cut, masks, bad numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from workbench.agent.logprobs import completion_logprobs
from workbench.agent.policy import Policy, load_policy
from workbench.config import LOSSES, Config, change, make_config
from workbench.learning.batch import Sample
from workbench.learning.update import decay, update

VOCABULARY = 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("random-llama")
    words = {"<pad>": 0, "<eos>": 1, **{f"w{i}": i for i in range(2, VOCABULARY)}}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<pad>")), pad_token="<pad>", eos_token="<eos>"
    )
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=VOCABULARY, eos_token_id=1, pad_token_id=0, bos_token_id=None, **shape)
    LlamaForCausalLM(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def settings(folder: Path, **values: object) -> Config:
    return make_config({"policy": str(folder), "device": "cpu", "learning_rate": 1e-2, "kl_coef": 0.05, **values})


def draw_samples(policy: Policy, *, off: float = 0.1) -> list[Sample]:
    """Five rows of different length whose recorded log-probabilities lie `off` from the policy's own."""
    generator = torch.Generator().manual_seed(1)
    rows = [(5, 2), (9, 8), (3, 3), (12, 16), (7, 1)]
    samples = []
    for number, (prompt, completion) in enumerate(rows):
        ids = torch.randint(2, VOCABULARY, (prompt + completion,), generator=generator).tolist()
        row = (tuple(ids[:prompt]), tuple(ids[prompt:]))
        with torch.no_grad():
            own = completion_logprobs(policy.model, [row], 1.0)[0][0]
        noise = off * torch.randn(completion, generator=generator)
        advantage = (-1.0) ** number * (0.5 + number / 4)
        samples.append(Sample(*row, tuple((own + noise).tolist()), advantage, 0, f"g{number % 2}"))
    return samples


def gradients(policy: Policy, samples: list[Sample], config: Config) -> list[torch.Tensor]:
    """The whole step's gradient, read off a plain SGD update of learning rate 1 without clipping."""
    before = [parameter.detach().clone() for parameter in policy.trainable()]
    optimizer = torch.optim.SGD(policy.trainable(), lr=1.0)
    update(policy, optimizer, samples, change(config, max_grad_norm=1e6))
    moved = [old - new.detach() for old, new in zip(before, policy.trainable(), strict=True)]
    with torch.no_grad():
        for parameter, old in zip(policy.trainable(), before, strict=True):
            parameter.copy_(old)
    return moved


@pytest.mark.parametrize("loss", LOSSES)
def test_micro_batch_split_changes_nothing(folder: Path, loss: str) -> None:
    config = settings(folder, loss=loss)
    policy = load_policy(config)
    samples = draw_samples(policy)
    whole = gradients(policy, samples, config)
    single = gradients(policy, samples, change(config, micro_batch_tokens=64))
    scale = max(float(gradient.abs().max()) for gradient in whole)
    assert scale > 1e-4
    for one, other in zip(whole, single, strict=True):
        assert float((one - other).abs().max()) <= 1e-5 * scale


@pytest.mark.parametrize("loss", LOSSES)
def test_order_of_samples_changes_nothing(folder: Path, loss: str) -> None:
    config = settings(folder, loss=loss)
    policy = load_policy(config)
    samples = draw_samples(policy)
    forward, backward = gradients(policy, samples, config), gradients(policy, samples[::-1], config)
    scale = max(float(gradient.abs().max()) for gradient in forward)
    assert all(float((a - b).abs().max()) <= 1e-5 * scale for a, b in zip(forward, backward, strict=True))


def test_clipping_acts_from_the_second_iteration(folder: Path) -> None:
    config = settings(folder, iterations=2, learning_rate=0.1, kl_coef=0.0)
    policy = load_policy(config)
    samples = draw_samples(policy, off=0.0)
    optimizer = torch.optim.AdamW(policy.trainable(), lr=0.1)
    metrics = update(policy, optimizer, samples, config)
    assert metrics["clip_low_share"] + metrics["clip_high_share"] > 0
    assert metrics["ratio_max"] > 1.0
    once = load_policy(config)
    metrics = update(once, torch.optim.AdamW(once.trainable(), lr=0.1), samples, change(config, iterations=1))
    assert metrics["clip_low_share"] == metrics["clip_high_share"] == 0
    assert metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-5)


def test_recomputed_anchors_stay_where_they_were_before_the_first_iteration(folder: Path) -> None:
    """policy/old moves with the iterations; old/sampler, which weighs the tokens, keeps every bit."""
    config = settings(folder, ratio="decoupled", mismatch="truncate", kl_coef=0.0)
    found = []
    for iterations in (1, 2):
        policy = load_policy(config)
        samples = draw_samples(policy)
        optimizer = torch.optim.AdamW(policy.trainable(), lr=0.1)
        found.append(update(policy, optimizer, samples, change(config, iterations=iterations)))
    once, twice = found
    assert once["ratio_max"] == pytest.approx(1.0, abs=1e-5)
    assert once["clip_low_share"] == once["clip_high_share"] == 0
    assert twice["clip_low_share"] + twice["clip_high_share"] > 0
    assert once["kl_mismatch"] > 1e-4
    for name in ("kl_mismatch", "mismatch_capped_share", "mismatch_ess"):
        assert twice[name] == once[name]


@pytest.mark.parametrize("loss", ["grpo", "dr_grpo", "dapo", "gspo"])
def test_the_first_step_on_policy_reports_a_loss_of_0_and_a_gradient(folder: Path, loss: str) -> None:
    config = settings(folder, loss=loss, kl_coef=0.0)
    policy = load_policy(config)
    drawn = [sample for sample in draw_samples(policy, off=0.0) if len(sample.completion_ids) >= 3]
    # equal lengths, and advantages that are centred, as those of a group are
    samples = [
        replace(s, completion_ids=s.completion_ids[:3], sampler_logprobs=s.sampler_logprobs[:3], advantage=advantage)
        for s, advantage in zip(drawn, (1.5, -0.5, -1.0), strict=True)
    ]
    metrics = update(policy, torch.optim.AdamW(policy.trainable(), lr=1e-2), samples, config)
    assert abs(metrics["loss"]) < 1e-4
    assert metrics["grad_norm"] > 1e-3
    assert (metrics["rows"], metrics["tokens"]) == (3, 9)


def with_flat(policy: Policy) -> tuple[list[Sample], list[Sample]]:
    """Samples that teach, and three times as many tokens that do not."""
    teaching = draw_samples(policy)
    flat = [replace(sample, advantage=0.0, group_id="flat", teaches=False) for sample in teaching * 3]
    return teaching, flat


@pytest.mark.parametrize("loss", LOSSES)
def test_flat_groups_enter_the_kl_term_and_do_not_shrink_the_surrogate(folder: Path, loss: str) -> None:
    """The step's gradient is that of the teaching samples alone plus that of the KL term over all."""
    config = settings(folder, loss=loss, kl_coef=0.0)
    policy = load_policy(change(config, kl_coef=0.5))
    with torch.no_grad():  # away from the reference, or the KL term had no gradient
        generator = torch.Generator().manual_seed(5)
        for parameter in policy.trainable():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    teaching, flat = with_flat(policy)
    restrained = change(config, kl_coef=0.5)
    surrogate = gradients(policy, teaching, config)
    everything = [replace(sample, advantage=0.0, teaches=False) for sample in teaching + flat]
    penalty = gradients(policy, everything, restrained)
    for samples in (teaching + flat, flat[::-1] + teaching[::-1]):
        for cut in (8192, 64):
            found = gradients(policy, samples, change(restrained, micro_batch_tokens=cut))
            scale = max(float(gradient.abs().max()) for gradient in found)
            for whole, one, other in zip(found, surrogate, penalty, strict=True):
                assert float((whole - one - other).abs().max()) <= 1e-5 * scale + 1e-6
    assert max(float(gradient.abs().max()) for gradient in penalty) > 1e-4


def test_without_a_kl_term_no_reference_is_made(folder: Path) -> None:
    config = settings(folder, kl_coef=0.0)
    policy = load_policy(config)
    metrics = update(policy, torch.optim.AdamW(policy.trainable(), lr=1e-2), draw_samples(policy), config)
    assert "kl_ref" not in metrics
    assert policy._start is None


def test_a_step_that_is_not_finite_is_skipped_and_counted(folder: Path) -> None:
    config = settings(folder, kl_coef=0.0)
    policy = load_policy(config)
    samples = draw_samples(policy)
    bad = Sample(samples[0].prompt_ids, samples[0].completion_ids, samples[0].sampler_logprobs, math.inf, 0, "g")
    before = [parameter.detach().clone() for parameter in policy.trainable()]
    metrics = update(policy, torch.optim.AdamW(policy.trainable(), lr=1e-2), [bad, *samples[1:]], config)
    assert metrics["skipped_updates"] == 1
    assert all(torch.equal(a, b) for a, b in zip(before, policy.trainable(), strict=True))
    good = update(policy, torch.optim.AdamW(policy.trainable(), lr=1e-2), samples, config)
    assert good["skipped_updates"] == 0
    assert 0 < good["grad_norm"] < math.inf


def test_reference_is_the_policy_at_the_start(folder: Path) -> None:
    config = settings(folder)
    policy = load_policy(config)
    optimizer = torch.optim.AdamW(policy.trainable(), lr=1e-2)
    samples = draw_samples(policy)
    first = update(policy, optimizer, samples, config)
    second = update(policy, optimizer, samples, config)
    assert first["kl_ref"] == pytest.approx(0.0, abs=1e-6)
    assert second["kl_ref"] > 1e-6


def test_no_samples_change_nothing(folder: Path) -> None:
    config = settings(folder)
    policy = load_policy(config)
    metrics = update(policy, torch.optim.AdamW(policy.trainable(), lr=1.0), [], config)
    assert metrics == {"samples": 0.0, "skipped_updates": 0.0}


def test_the_learning_rate_falls_over_the_last_steps_only() -> None:
    config = make_config({"steps": 10, "learning_rate_decay": 0.5})
    assert [round(decay(step, config), 2) for step in (1, 5, 6, 8, 10, 12)] == [1, 1, 0.82, 0.46, 0.1, 0.1]
    assert {decay(step, make_config({"steps": 10, "learning_rate_decay": 0.0})) for step in range(1, 20)} == {1.0}
    assert decay(10, make_config({"steps": 10, "learning_rate_decay": 1.0})) == pytest.approx(0.1)
