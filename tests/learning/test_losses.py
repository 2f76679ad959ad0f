"""Values and gradients of the losses against arithmetic written out by hand, and what must never change them."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from workbench.config import LOSSES, make_config
from workbench.learning.losses import (
    LOG_BOUND,
    OBJECTIVES,
    Denominators,
    LossConfig,
    Sums,
    finalise,
    kl,
    merge,
    mismatch_weight,
    policy_loss,
)
from workbench.types import WorkbenchError

# Row 0: A = +1, three tokens, ratios 1, 1.5, 0.5.   Row 1: A = -2, one token, ratio 0.5.   Old log-probabilities -1.
RATIOS = torch.tensor([[1.0, 1.5, 0.5], [0.5, math.nan, math.nan]])
MASK = torch.tensor([[1, 1, 1], [1, 0, 0]])
ADVANTAGES = torch.tensor([1.0, -2.0])
OLD = torch.where(MASK.bool(), -1.0, math.nan)
WHOLE = Denominators(rows=2, tokens=4, max_length=10)

# Clipped surrogates, bounds 0.8 and 1.28. Row 0: min(1, 1) = 1; min(1.5, 1.28) = 1.28; min(0.5, 0.8) = 0.5: sum 2.78.
# Row 1: min(0.5·-2, 0.8·-2) = -1.6. Their negatives are the losses; tokens at 1.28 and at -1.6 are clipped.
# GSPO: row 0 has ratio (1 · 1.5 · 0.5)^(1/3) = 0.75^(1/3) = 0.9085603, inside the bounds; row 1 as before.
# CISPO, cap 1.2: weights 1, 1.2, 0.5 and 0.5; log-probabilities -1, -1 + ln 1.5 = -0.5945349, -1 + ln 0.5 = -1.6931472.
#   row 0: 1·1 + 1.2·0.5945349 + 0.5·1.6931472 = 2.5600155;  row 1: -0.5·(-2)·(-1.6931472) = -1.6931472
VALUES = {
    "grpo": (-2.78 / 3 + 1.6 / 1) / 2,
    "dr_grpo": (-2.78 + 1.6) / (2 * 10),
    "dapo": (-2.78 + 1.6) / 4,
    "gspo": (-0.9085603 + 1.6) / 2,
    "cispo": (2.5600155 - 1.6931472) / 4,
}
# d loss / d logprob of an unclipped token is -ratio·A, of a clipped one 0; each times the aggregation's weight.
# GSPO: d ratio / d logprob = ratio/3 at each token of row 0.   CISPO: -weight·A at every token.
GRADIENTS = {
    "grpo": [[-1 / 3 / 2, 0, -0.5 / 3 / 2], [0, 0, 0]],
    "dr_grpo": [[-1 / 20, 0, -0.5 / 20], [0, 0, 0]],
    "dapo": [[-1 / 4, 0, -0.5 / 4], [0, 0, 0]],
    "gspo": [[-0.9085603 / 3 / 2] * 3, [0, 0, 0]],
    "cispo": [[-1 / 4, -1.2 / 4, -0.5 / 4], [0.5 * 2 / 4, 0, 0]],
}


def run(
    policy: Tensor,
    old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    config: LossConfig,
    whole: Denominators,
    *,
    sampler: Tensor | None = None,
    ref: Tensor | None = None,
    entropy: Tensor | None = None,
) -> tuple[Tensor, Sums]:
    sampler = old if sampler is None else sampler
    return policy_loss(policy, old, sampler, ref, advantages, mask, config, whole, entropy=entropy)


@pytest.mark.parametrize("loss", LOSSES)
def test_value_and_gradient_by_hand(loss: str) -> None:
    policy = (OLD + RATIOS.log()).requires_grad_()
    value, _ = run(policy, OLD, ADVANTAGES, MASK, LossConfig(loss, ratio_cap=1.2), WHOLE)
    value.backward()
    assert value.item() == pytest.approx(VALUES[loss], abs=1e-6)
    assert torch.allclose(policy.grad, torch.tensor(GRADIENTS[loss], dtype=torch.float32), atol=1e-6)


def by_hand(
    loss: str, policy: np.ndarray, old: np.ndarray, sampler: np.ndarray, ref: np.ndarray, advantages: np.ndarray
) -> tuple[float, list[np.ndarray]]:
    """The step's loss and its gradient, row by row in fp64, without autograd: bounds 0.8/1.28, cap 1.2, k2 with 0.1,
    mismatch weights truncated at 2. Every row of the lists is one completion."""
    rows, tokens, limit = len(policy), sum(map(len, policy)), 40
    total, gradients = 0.0, []
    for p, o, s, r, a in zip(policy, old, sampler, ref, advantages, strict=True):
        n = len(p)
        share = {"grpo": 1 / (n * rows), "gspo": 1 / (n * rows), "dr_grpo": 1 / (rows * limit)}.get(loss, 1 / tokens)
        log_ratio = np.full(n, (p - o).mean()) if loss == "gspo" else p - o
        weight = np.minimum(np.exp(np.full(n, (o - s).sum()) if loss == "gspo" else o - s), 2.0)
        ratio = np.exp(log_ratio)
        if loss == "cispo":
            capped = np.minimum(ratio, 1.2)
            value, slope = -capped * a * p, -capped * a
        else:
            clip = np.clip(ratio, 0.8, 1.28)
            value = -np.minimum(ratio * a, clip * a)
            slope = np.where(ratio * a <= clip * a, -ratio * a, 0.0)
        slope = np.full(n, (weight * slope).mean()) if loss == "gspo" else weight * slope
        total += share * (weight * value + 0.1 * (p - r) ** 2 / 2).sum()
        gradients.append(share * (slope + 0.1 * (p - r)))
    return total, gradients


def ragged(lengths: tuple[int, ...], seed: int = 0) -> tuple[dict[str, Tensor], Tensor, Tensor, list[int]]:
    """Random padded log-probabilities (NaN off the mask), mask and advantages of rows of these lengths."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.arange(max(lengths))[None, :] < torch.tensor(lengths)[:, None]
    policy = -3 * torch.rand(mask.shape, generator=generator)
    near = {
        name: policy + spread * torch.randn(mask.shape, generator=generator)
        for name, spread in (("policy", 0.0), ("old", 0.3), ("sampler", 0.4), ("ref", 0.5))
    }
    tensors = {name: torch.where(mask, value, math.nan) for name, value in near.items()}
    return tensors, mask, torch.randn(len(lengths), generator=generator), list(lengths)


@pytest.mark.parametrize("loss", LOSSES)
def test_gradient_equals_formula_on_random_rows(loss: str) -> None:
    tensors, mask, advantages, lengths = ragged((5, 1, 12, 7, 30), seed=3)
    policy = tensors["policy"].clone().requires_grad_()
    config = LossConfig(loss, ratio_cap=1.2, kl_coef=0.1, kl_estimator="k2", mismatch="truncate")
    whole = Denominators(len(lengths), sum(lengths), 40)
    value, _ = run(
        policy, tensors["old"], advantages, mask, config, whole, sampler=tensors["sampler"], ref=tensors["ref"]
    )
    value.backward()
    cut = {name: [row[:n].double().numpy() for row, n in zip(t, lengths, strict=True)] for name, t in tensors.items()}
    total, gradients = by_hand(loss, cut["policy"], cut["old"], cut["sampler"], cut["ref"], advantages.double().numpy())
    assert value.item() == pytest.approx(total, rel=1e-5)
    for row, (gradient, n) in enumerate(zip(gradients, lengths, strict=True)):
        np.testing.assert_allclose(policy.grad[row, :n].numpy(), gradient, rtol=2e-5, atol=1e-8)
        assert not policy.grad[row, n:].any()


# --- KL


# x = log(policy/ref) = 0.5: k1 = 0.5; k2 = 0.5²/2 = 0.125; k3 = e^-0.5 - 1 + 0.5 = 0.1065307.
# Derivatives by the policy's log-probability: 1; x = 0.5; 1 - e^-0.5 = 0.3934693.
@pytest.mark.parametrize(
    ("estimator", "value", "slope"), [("k1", 0.5, 1.0), ("k2", 0.125, 0.5), ("k3", 0.1065307, 0.3934693)]
)
def test_kl_by_hand(estimator: str, value: float, slope: float) -> None:
    policy = torch.tensor([-1.0], requires_grad=True)
    estimate = kl(estimator, policy, torch.tensor([-1.5]))
    estimate.sum().backward()
    assert estimate.item() == pytest.approx(value, abs=1e-6)
    assert policy.grad.item() == pytest.approx(slope, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("gap", [100.0, -100.0])
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_is_finite_far_apart(estimator: str, gap: float, dtype: torch.dtype) -> None:
    policy = torch.tensor([-1.0], dtype=dtype, requires_grad=True)
    estimate = kl(estimator, policy, policy.detach() - gap)
    estimate.sum().backward()
    assert torch.isfinite(estimate).all()
    assert torch.isfinite(policy.grad).all()


def test_k3_bounded_by_hand_and_never_pushes_the_wrong_way() -> None:
    policy = torch.tensor([0.0, 0.0, 0.0], requires_grad=True)
    ref = torch.tensor([-100.0, 100.0, 5.0])
    estimate = kl("k3", policy, ref)
    estimate.sum().backward()
    # x = 100: e^-100 - 1 + 100 = 99.   x = -100, bounded at -20: e^20 - 1 - 20.   x = -5: e^5 - 1 - 5 = 142.41316
    assert estimate.tolist() == pytest.approx([99.0, math.exp(LOG_BOUND) - 21, 142.41316], rel=1e-5)
    # 1 - e^-100 = 1: less of it;  0 beyond the bound;  1 - e^5 = -147.41316: more of it
    assert policy.grad.tolist() == pytest.approx([1.0, 0.0, -147.41316], rel=1e-5)


def test_kl_counts_trained_tokens_only() -> None:
    policy = torch.full((1, 4), -1.0, requires_grad=True)
    mask = torch.tensor([[0, 1, 1, 0]])
    ref = torch.tensor([[-51.0, -1.0, -1.0, 49.0]])  # a gap of 50 where an observation stands, none elsewhere
    config = LossConfig(kl_coef=1.0)
    value, sums = run(policy, policy.detach(), torch.zeros(1), mask, config, Denominators(1, 2, 4), ref=ref)
    value.backward()
    assert value.item() == 0
    assert not policy.grad.any()
    assert finalise(merge([sums]))["kl_ref"] == 0


def test_kl_enters_the_loss_with_its_weight() -> None:
    # two tokens, A = 0, k2 of gaps 1 and 2: (1/2 + 4/2) / 2 tokens = 1.25; times 0.4 = 0.5
    policy = torch.tensor([[-1.0, -1.0]])
    config = LossConfig(kl_coef=0.4, kl_estimator="k2")
    value, sums = run(
        policy,
        policy,
        torch.zeros(1),
        torch.ones(1, 2),
        config,
        Denominators(1, 2, 2),
        ref=policy - torch.tensor([1, 2]),
    )
    assert value.item() == pytest.approx(0.5)
    assert finalise(merge([sums]))["kl_ref"] == pytest.approx(1.25)


def test_each_term_has_its_own_denominators() -> None:
    # one row of two tokens teaches: -(1 + 1)/2; k2 of gaps 1, 2, 1, 1: (1/2 + 4/2 + 1/2 + 1/2) / 4 tokens = 0.875
    policy = torch.full((2, 2), -1.0)
    value, _ = policy_loss(
        policy,
        policy,
        policy,
        policy - torch.tensor([[1, 2], [1, 1]]),
        torch.tensor([1.0, 0.0]),
        torch.ones(2, 2),
        LossConfig(kl_coef=0.4, kl_estimator="k2"),
        Denominators(1, 2, 2),
        kl_denominators=Denominators(2, 4, 2),
    )
    assert value.item() == pytest.approx(-1.0 + 0.4 * 0.875)


def test_no_reference_no_kl_to_it() -> None:
    policy = torch.zeros(1, 2)
    _, sums = run(policy, policy, torch.ones(1), torch.ones(1, 2), LossConfig(), Denominators(1, 2, 2))
    assert "kl_ref" not in finalise(merge([sums]))
    with pytest.raises(WorkbenchError, match=r"kl_coef=0\.1 without ref_logprobs"):
        run(policy, policy, torch.ones(1), torch.ones(1, 2), LossConfig(kl_coef=0.1), Denominators(1, 2, 2))


# --- what the cut into micro-batches, order and padding must not change


class Bigram(torch.nn.Module):
    """A policy small enough to differentiate at once: the next token's logits depend on the token before."""

    def __init__(self, vocabulary: int = 11) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.table = torch.nn.Parameter(torch.randn(vocabulary, vocabulary, generator=generator))

    def forward(self, ids: Tensor) -> Tensor:
        """[R, C + 1] ids → [R, C] log-probabilities of ids[:, 1:]."""
        return self.table[ids[:, :-1]].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]


def step_gradient(
    loss: str, cut: list[list[int]], *, mismatch: str = "truncate", width: int | None = None
) -> tuple[float, Tensor, dict[str, float]]:
    """Loss, gradient and metrics of one step on rows of length 2, 8, 3, 16, cut into micro-batches as given."""
    lengths = [2, 8, 3, 16]
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(0, 11, (4, 17), generator=generator)
    noise = torch.randn(3, 4, 16, generator=generator)
    advantages = torch.tensor([0.5, -1.5, 2.0, -1.0])
    model = Bigram()
    with torch.no_grad():
        start = model(ids)
    config = LossConfig(loss, ratio_cap=1.1, kl_coef=0.05, mismatch=mismatch, mismatch_cap=1.2)  # type: ignore[arg-type]
    whole = Denominators(4, sum(lengths), 20)
    total, parts = 0.0, []
    for rows in cut:
        longest = width or max(lengths[row] for row in rows)
        take = (torch.tensor(rows), slice(0, longest))
        mask = torch.arange(longest)[None, :] < torch.tensor([lengths[row] for row in rows])[:, None]
        value, sums = run(
            model(ids[take[0]])[:, :longest],
            (start + 0.2 * noise[0])[take],
            advantages[take[0]],
            mask,
            config,
            whole,
            sampler=(start + 0.3 * noise[1])[take],
            ref=(start + 0.3 * noise[2])[take],
        )
        value.backward()
        total += value.item()
        parts.append(sums)
    return total, model.table.grad, finalise(merge(parts))


@pytest.mark.parametrize("mismatch", ["none", "truncate", "mask"])
@pytest.mark.parametrize("loss", LOSSES)
def test_micro_batches_order_and_padding_change_nothing(loss: str, mismatch: str) -> None:
    value, gradient, metrics = step_gradient(loss, [[0, 1, 2, 3]], mismatch=mismatch)
    assert gradient.norm() > 0
    for cut in ([[0], [1], [2], [3]], [[3, 1], [2, 0]], [[3, 2, 1, 0]]):
        other_value, other_gradient, other_metrics = step_gradient(loss, cut, mismatch=mismatch)
        assert other_value == pytest.approx(value, rel=1e-5)
        assert (other_gradient - gradient).norm() <= 1e-5 * gradient.norm()
        assert other_metrics == pytest.approx(metrics, rel=1e-5)
    _, padded, _ = step_gradient(loss, [[0, 1, 2, 3]], mismatch=mismatch, width=16)
    assert torch.equal(padded, gradient)


@pytest.mark.parametrize(("loss", "ratio"), [("grpo", 10), ("gspo", 10), ("dr_grpo", 1), ("dapo", 1), ("cispo", 1)])
def test_length_bias_of_each_aggregation(loss: str, ratio: float) -> None:
    """Under the sequence mean a token of a ten times longer row weighs a tenth; under the others the same."""
    mask = torch.arange(100)[None, :] < torch.tensor([10, 100])[:, None]
    policy = torch.full((2, 100), -1.0, requires_grad=True)
    value, _ = run(policy, policy.detach(), -torch.ones(2), mask, LossConfig(loss), Denominators(2, 110, 100))  # type: ignore[arg-type]
    value.backward()
    assert (policy.grad[0, 0] / policy.grad[1, 0]).item() == pytest.approx(ratio, rel=1e-5)


@pytest.mark.parametrize("loss", [loss for loss in LOSSES if loss != "cispo"])
def test_first_on_policy_step_has_loss_0_and_a_gradient(loss: str) -> None:
    policy = -torch.rand(4, 6, generator=torch.Generator().manual_seed(0))
    policy.requires_grad_()
    advantages = torch.tensor([1.5, -0.5, -0.5, -0.5])
    value, _ = run(policy, policy.detach(), advantages, torch.ones(4, 6), LossConfig(loss), Denominators(4, 24, 8))  # type: ignore[arg-type]
    value.backward()
    assert abs(value.item()) < 1e-6
    assert policy.grad.norm() > 0.01


# --- nothing leaks from off the mask, nothing breaks without a token


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("shape", [(3, 5), (2, 0), (0, 0), (0, 4)])
def test_no_trained_token(loss: str, shape: tuple[int, int]) -> None:
    policy = torch.full(shape, math.nan, requires_grad=True)
    nothing = policy.detach()
    config = LossConfig(loss, kl_coef=0.1, mismatch="mask")  # type: ignore[arg-type]
    value, sums = run(
        policy,
        nothing,
        torch.ones(shape[0]),
        torch.zeros(shape),
        config,
        Denominators(0, 0, 5),
        ref=nothing,
        entropy=nothing,
    )
    value.backward()
    metrics = finalise(merge([sums]))
    assert value.item() == 0
    assert not policy.grad.any()
    assert metrics == {"loss": 0.0, "tokens": 0.0, "rows": 0.0}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_row_without_tokens_changes_nothing(loss: str) -> None:
    tensors, mask, advantages, _ = ragged((4, 6))
    config, whole = LossConfig(loss), Denominators(2, 10, 8)  # type: ignore[arg-type]

    def gradient(rows: int) -> tuple[float, Tensor]:
        extra = torch.full((rows, 6), math.nan)
        policy = torch.cat([tensors["policy"], extra]).requires_grad_()
        value, _ = run(
            policy,
            torch.cat([tensors["old"], extra]),
            torch.cat([advantages, torch.ones(rows)]),
            torch.cat([mask, torch.zeros(rows, 6, dtype=torch.bool)]),
            config,
            whole,
        )
        value.backward()
        return value.item(), policy.grad

    alone, beside = gradient(0), gradient(1)
    assert beside[0] == pytest.approx(alone[0], rel=1e-6)
    assert torch.equal(beside[1][:2], alone[1])
    assert not beside[1][2].any()


def test_metrics_of_the_hand_computed_rows() -> None:
    policy = OLD + RATIOS.log()
    entropy = torch.tensor([[1.0, 2.0, 3.0], [2.0, math.nan, math.nan]])
    _, sums = run(policy, OLD, ADVANTAGES, MASK, LossConfig("dapo"), WHOLE, entropy=entropy)
    metrics = finalise(merge([sums]))
    # k3 of KL(old ‖ policy) = ratio - 1 - ln ratio: 0, 0.5 - ln 1.5, -0.5 + ln 2, -0.5 + ln 2; mean over 4 tokens
    kl_old = (0.5 - math.log(1.5) + 2 * (-0.5 + math.log(2))) / 4
    expected = {
        "loss": VALUES["dapo"],
        "tokens": 4,
        "rows": 2,
        "ratio_mean": (1 + 1.5 + 0.5 + 0.5) / 4,
        "ratio_max": 1.5,
        "ratio_bounded_share": 0,
        "clip_low_share": 2 / 4,
        "clip_low_share_positive": 1 / 4,
        "clip_low_share_negative": 1 / 4,
        "clip_high_share": 1 / 4,
        "clip_high_share_positive": 1 / 4,
        "clip_high_share_negative": 0,
        "kl_old": kl_old,
        "kl_mismatch": 0,
        "mismatch_capped_share": 0,
        "mismatch_ess": 1,
        "entropy": (1 + 2 + 3 + 2) / 4,
    }
    assert metrics == pytest.approx(expected, abs=1e-6)
    assert all(type(value) is float for value in metrics.values())


def test_sums_hold_no_graph() -> None:
    policy = torch.zeros(1, 2, requires_grad=True)
    _, sums = run(
        policy,
        policy.detach(),
        torch.ones(1),
        torch.ones(1, 2),
        LossConfig(),
        Denominators(1, 2, 2),
        entropy=policy * 2,
    )
    for values in (sums.totals, sums.per_token, sums.maxima):
        assert not any(value.requires_grad for value in values.values())


# --- policy against old, old against sampler: two ratios, never mixed


def test_mismatch_weights_by_hand() -> None:
    # old/sampler = 3 and 0.5, cap 2, policy = old, A = 1. truncate: -(2 + 0.5)/2; mask: -(0 + 0.5)/2; none: -(1 + 1)/2
    old, mask = torch.full((1, 2), -1.0), torch.ones(1, 2)
    sampler = old - torch.tensor([3.0, 0.5]).log()
    found = {}
    for mode, value in (("none", -1.0), ("truncate", -1.25), ("mask", -0.25)):
        config = LossConfig(mismatch=mode)  # type: ignore[arg-type]
        loss, sums = run(old, old, torch.ones(1), mask, config, Denominators(1, 2, 2), sampler=sampler)
        assert loss.item() == pytest.approx(value)
        found[mode] = finalise(merge([sums]))
    assert [found[mode]["mismatch_capped_share"] for mode in found] == [0.5, 0.5, 0.5]
    # effective sample size: (Σw)²/(n Σw²) = 2²/(2·2) = 1;  2.5²/(2·4.25) = 0.7352941;  0.5²/(2·0.25) = 0.5
    assert [found[mode]["mismatch_ess"] for mode in found] == pytest.approx([1, 0.7352941, 0.5])
    # k3 of KL(sampler ‖ old) = w - 1 - ln w: (2 - ln 3 + -0.5 + ln 2)/2 = 0.5472674
    assert found["none"]["kl_mismatch"] == pytest.approx(0.5472674, abs=1e-6)


def test_weights_carry_no_gradient_and_survive_an_update_bit_for_bit() -> None:
    tensors, mask, advantages, _ = ragged((4, 6, 9))
    before = mismatch_weight(torch.where(mask, tensors["old"] - tensors["sampler"], 0.0), "truncate", 2.0)
    config, whole = LossConfig(mismatch="truncate"), Denominators(3, 19, 9)
    policy = tensors["old"].clone().requires_grad_()
    weights = []
    for _ in range(2):
        value, sums = run(policy, tensors["old"], advantages, mask, config, whole, sampler=tensors["sampler"])
        (gradient,) = torch.autograd.grad(value, policy)
        policy = (policy - 5 * gradient).detach().requires_grad_()
        weights.append(finalise(merge([sums]))["mismatch_ess"])
    after = mismatch_weight(torch.where(mask, tensors["old"] - tensors["sampler"], 0.0), "truncate", 2.0)
    assert torch.equal(before, after)
    assert weights[0] == weights[1]


@pytest.mark.parametrize("loss", LOSSES)
def test_inner_iterations_move_the_ratio_and_reach_the_clip(loss: str) -> None:
    model, whole, lengths = Bigram(), Denominators(2, 12, 6), torch.ones(2, 6)
    ids = torch.randint(0, 11, (2, 7), generator=torch.Generator().manual_seed(1))
    old = model(ids).detach()
    config = LossConfig(loss, clip_low=0.01, clip_high=0.01, ratio_cap=1.01)  # type: ignore[arg-type]
    found = []
    for _ in range(2):
        model.zero_grad()
        value, sums = run(model(ids), old, torch.tensor([1.0, -1.0]), lengths, config, whole)
        value.backward()
        with torch.no_grad():
            model.table -= 5 * model.table.grad
        found.append(finalise(merge([sums])))
    assert found[0]["ratio_mean"] == found[0]["ratio_max"] == 1
    assert found[0]["clip_low_share"] == found[0]["clip_high_share"] == 0
    assert found[1]["ratio_max"] > 1.01
    assert found[1]["clip_high_share"] > 0


def test_undoing_a_push_is_not_clipped() -> None:
    """A ratio beyond its bound keeps its gradient when the advantage pulls it back, and loses it when it pushes on."""
    policy = torch.tensor([[math.log(1.5)], [math.log(1.5)], [math.log(0.5)], [math.log(0.5)]], requires_grad=True)
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0])
    value, sums = run(policy, torch.zeros(4, 1), advantages, torch.ones(4, 1), LossConfig(), Denominators(4, 4, 1))
    value.backward()
    # pushed on: 0;  pulled back: -ratio·A/4 = 1.5/4 and -0.5/4
    assert policy.grad[:, 0].tolist() == pytest.approx([0, 1.5 / 4, -0.5 / 4, 0])
    metrics = finalise(merge([sums]))
    for name in ("clip_low_share_positive", "clip_low_share_negative", "clip_high_share_positive"):
        assert metrics[name] == 0.25


def test_sequence_products_over_thousands_of_tokens_stay_finite() -> None:
    # 2000 tokens that differ by 0.01: the completion's weight is e^20, far over the cap; its length-normalised
    # ratio is e^0.01
    old, mask = torch.full((3, 2000), -1.0), torch.ones(3, 2000)
    whole = Denominators(3, 6000, 2000)
    for mode, weight in (("truncate", 2.0), ("mask", 0.0)):
        config = LossConfig("gspo", mismatch=mode, clip_low=3e-4, clip_high=4e-4)  # type: ignore[arg-type]
        policy = (old + 0.01).requires_grad_()
        value, sums = run(policy, old, torch.ones(3), mask, config, whole, sampler=old - 0.01)
        value.backward()
        metrics = finalise(merge([sums]))
        assert value.item() == pytest.approx(-weight * 1.0004, rel=1e-5)
        assert torch.isfinite(policy.grad).all()
        assert metrics["mismatch_capped_share"] == 1.0
        assert metrics["clip_high_share"] == 1.0
        assert metrics["ratio_mean"] == pytest.approx(math.exp(0.01), rel=1e-4)
        assert all(math.isfinite(number) for number in metrics.values())


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("gap", [1000.0, -1000.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_ratios_are_bounded_before_they_are_exponentiated(loss: str, gap: float, advantage: float) -> None:
    old = torch.full((1, 3), -1.0)
    policy = (old + gap).requires_grad_()
    config = LossConfig(loss)  # type: ignore[arg-type]
    value, sums = run(policy, old, torch.tensor([advantage]), torch.ones(1, 3), config, Denominators(1, 3, 3))
    value.backward()
    metrics = finalise(merge([sums]))
    assert torch.isfinite(value)
    assert torch.isfinite(policy.grad).all()
    assert metrics["ratio_bounded_share"] == 1.0
    assert all(math.isfinite(number) for number in metrics.values())


# --- settings


def test_settings_come_from_the_configuration() -> None:
    config = make_config(loss="gspo", clip_low=0.0003, clip_high=0.0004, kl_coef=0.01, kl_estimator="k1")
    settings = LossConfig.from_config(config)
    assert settings == LossConfig("gspo", 0.0003, 0.0004, kl_coef=0.01, kl_estimator="k1")
    assert LossConfig.from_config(make_config()) == LossConfig()


def test_every_configurable_loss_is_in_the_table() -> None:
    assert tuple(OBJECTIVES) == LOSSES


def test_shapes_that_disagree_are_named() -> None:
    policy = torch.zeros(2, 3)
    whole = Denominators(2, 6, 3)
    with pytest.raises(WorkbenchError, match=r"old_logprobs has shape \(2, 2\): expected \(2, 3\)"):
        run(policy, policy[:, :2], torch.ones(2), torch.ones(2, 3), LossConfig(), whole)
    with pytest.raises(WorkbenchError, match=r"advantages have shape \(3,\): expected \(2,\), one per row"):
        run(policy, policy, torch.ones(3), torch.ones(2, 3), LossConfig(), whole)


def test_half_precision_inputs_are_computed_in_fp32() -> None:
    policy = torch.full((1, 4), -1.0, dtype=torch.bfloat16, requires_grad=True)
    value, _ = run(policy, policy.detach(), torch.ones(1), torch.ones(1, 4), LossConfig(), Denominators(1, 4, 4))
    value.backward()
    assert value.dtype == torch.float32
    assert policy.grad.dtype == torch.bfloat16
    assert policy.grad.tolist() == [[-0.25] * 4]


def test_larger_ratio_cap_weighs_more() -> None:
    policy = torch.zeros(1, 1) - 0.5
    losses = []
    for cap in (1.0, 2.0, 4.0):
        config = LossConfig("cispo", ratio_cap=cap)
        losses.append(run(policy, policy - 2, torch.ones(1), torch.ones(1, 1), config, Denominators(1, 1, 1))[0].item())
    # ratio e² = 7.39, capped at 1, 2, 4: -cap · 1 · -0.5
    assert losses == pytest.approx([0.5, 1.0, 2.0])
    assert all(a < b for a, b in pairwise(losses))
