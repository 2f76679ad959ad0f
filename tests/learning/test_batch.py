from __future__ import annotations

import math
import random

import pytest
import torch

from workbench.learning.advantages import group_advantages
from workbench.learning.batch import Sample, collate, denominators, make_samples, micro_batches
from workbench.learning.losses import Denominators, LossConfig, policy_loss
from workbench.types import Action, Feedback, Group, Kind, State, StopReason, Turn, Verdict, WorkbenchError


def sample(prompt: int, completion: int, *, advantage: float = 1.0, group_id: str = "g") -> Sample:
    return Sample(
        tuple(range(100, 100 + prompt)), tuple(range(completion)), (-0.5,) * completion, advantage, 0, group_id
    )


def group(name: str, lengths: list[int], versions: list[int] | None = None) -> Group:
    state = State(name, Kind.DRAFT)
    turns = tuple(
        Turn(
            state,
            Action("text", tuple(range(n)), (-1.0,) * n, version, StopReason.EOS),
            Feedback(Verdict.OK, "code"),
            None,
            name,
            f"{name}/{i}",
        )
        for i, (n, version) in enumerate(zip(lengths, versions or [0] * len(lengths), strict=True))
    )
    return Group(name, state, (7, 8), turns)


def test_samples_keep_ids_and_inherit_their_advantage() -> None:
    groups = [group("a", [3, 2]), group("b", [1, 4])]
    samples, metrics = make_samples(groups, [[1.0, -1.0], [0.5, -0.5]], 0, 8)
    assert [(s.group_id, s.advantage, s.completion_ids) for s in samples] == [
        ("a", 1.0, (0, 1, 2)),
        ("a", -1.0, (0, 1)),
        ("b", 0.5, (0,)),
        ("b", -0.5, (0, 1, 2, 3)),
    ]
    assert samples[0].prompt_ids == (7, 8)
    assert metrics == {
        "samples": 4.0,
        "trained_tokens": 10.0,
        "samples_stale": 0.0,
        "samples_empty": 0.0,
        "samples_flat": 0.0,
    }


def test_what_is_left_out_is_counted_and_leaves_the_denominators() -> None:
    groups = [group("a", [3, 0, 2, 5], [10, 10, 1, 10]), group("flat", [4, 4], [10, 10])]
    # version 10, limit 8: the third member is 9 versions old; the fourth could not be scored
    samples, metrics = make_samples(groups, [[1.0, -0.5, -0.5, None], [0.0, 0.0]], 10, 8)
    assert [s.completion_ids for s in samples] == [(0, 1, 2)]
    assert (metrics["samples_stale"], metrics["samples_empty"], metrics["samples_flat"]) == (1, 1, 2)
    assert denominators(samples, 16) == Denominators(rows=1, tokens=3, max_length=16)


def test_flat_groups_stay_when_asked_for() -> None:
    groups = [group("flat", [4, 4]), group("a", [1, 1, 1])]
    advantages = [[0.0, 0.0], [0.5, 0.0, -0.5]]
    assert len(make_samples(groups, advantages, 0, 8)[0]) == 3, "a member at its group's mean is no flat group"
    kept, metrics = make_samples(groups, advantages, 0, 8, keep_flat=True)
    assert [sample.teaches for sample in kept] == [False, False, True, True, True]
    assert (metrics["samples"], metrics["samples_flat"]) == (5, 2)


def test_dropped_flat_groups_do_not_shrink_the_step() -> None:
    """Two groups that teach, alone or among six flat ones: the same samples, so the same gradient."""
    good, flat = [group(f"g{i}", [2, 2]) for i in range(2)], [group(f"f{i}", [3, 3]) for i in range(6)]
    few, few_metrics = group_advantages([[0.0, 1.0]] * 2, "group")
    many, many_metrics = group_advantages([[0.0, 1.0]] * 2 + [[0.5, 0.5]] * 6, "group")
    assert make_samples(good, few, 0, 8)[0] == make_samples(good + flat, many, 0, 8)[0]
    assert few_metrics["groups_used"] == many_metrics["groups_used"] == 2


def test_wrong_lengths_are_refused_at_once() -> None:
    with pytest.raises(WorkbenchError, match="Group 'a' has 2 turns and 1 advantages: expected one per turn"):
        make_samples([group("a", [1, 1])], [[1.0]], 0, 8)
    with pytest.raises(WorkbenchError, match="0 lists of advantages for 1 groups"):
        make_samples([group("a", [1, 1])], [], 0, 8)
    with pytest.raises(WorkbenchError, match="group 'g' has 2 ids and 1 log-probabilities"):
        Sample((1,), (2, 3), (-1.0,), 1.0, 0, "g")


def test_micro_batches_keep_to_the_budget_and_lose_nothing() -> None:
    generator = random.Random(0)
    samples = [sample(generator.randint(1, 30), generator.randint(1, 50)) for _ in range(200)]
    batches = micro_batches(samples, 256)
    assert sorted(id(s) for batch in batches for s in batch) == sorted(id(s) for s in samples)
    widths = [max(s.tokens for s in batch) for batch in batches]
    assert all(len(batch) * width <= 256 for batch, width in zip(batches, widths, strict=True))
    assert widths == sorted(widths, reverse=True)
    assert batches == micro_batches(samples, 256)


def test_micro_batches_at_the_edges() -> None:
    assert micro_batches([], 64) == []
    long, short = sample(100, 100), sample(1, 1)
    assert micro_batches([short, long], 64) == [[long], [short]], "a row over the budget goes alone"
    same = [sample(2, 2, group_id=str(i)) for i in range(4)]
    assert [[s.group_id for s in batch] for batch in micro_batches(same, 8)] == [["0", "1"], ["2", "3"]]


def test_collate_shapes_dtypes_and_values() -> None:
    batch = collate([sample(2, 3, advantage=0.5), sample(4, 1, advantage=-0.5)], "cpu")
    assert batch.loss_mask.tolist() == [[True, True, True], [True, False, False]]
    assert batch.sampler_logprobs.tolist() == [[-0.5, -0.5, -0.5], [-0.5, 0, 0]]
    assert batch.advantages.tolist() == [0.5, -0.5]
    assert batch.rows == (((100, 101), (0, 1, 2)), ((100, 101, 102, 103), (0,)))
    assert (batch.sampler_logprobs.dtype, batch.loss_mask.dtype) == (torch.float32, torch.bool)


def test_collate_without_rows_or_tokens() -> None:
    for samples in ([], [sample(2, 0), sample(1, 0)]):
        batch = collate(samples, "cpu")
        assert batch.loss_mask.shape == batch.sampler_logprobs.shape == (len(samples), 0)


def test_masks_come_from_lengths_whatever_the_ids_are() -> None:
    end = 2
    row = Sample((1,), (5, end, 6, end), (-1.0,) * 4, 1.0, 0, "g")
    other = Sample((1,), (5,) * 6, (-1.0,) * 6, 1.0, 0, "g")
    batch = collate([row, other], "cpu")
    assert batch.loss_mask.sum(1).tolist() == [4, 6]
    policy = batch.sampler_logprobs.clone().requires_grad_()
    loss, _ = policy_loss(
        policy,
        batch.sampler_logprobs,
        batch.sampler_logprobs,
        None,
        batch.advantages,
        batch.loss_mask,
        LossConfig(),
        denominators([row, other], 6),
    )
    loss.backward()
    assert (policy.grad[0, :4] != 0).all()
    assert not policy.grad[0, 4:].any()


def test_fuzzed_rows_always_agree() -> None:
    generator = random.Random(1)
    for _ in range(50):
        samples = [sample(generator.randint(0, 9), generator.randint(0, 9)) for _ in range(generator.randint(1, 6))]
        batch = collate(samples, "cpu")
        lengths = [len(s.completion_ids) for s in samples]
        assert batch.loss_mask.sum(1).tolist() == lengths
        assert denominators(samples, 9).tokens == int(batch.loss_mask.sum())
        assert math.isclose(batch.sampler_logprobs.sum().item(), -0.5 * sum(lengths), abs_tol=1e-4)
