"""A tiny random Llama with its own byte-level tokenizer and chat template, built in code: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from workbench.agent.policy import Policy, load_policy
from workbench.config import make_config

transformers_logging.disable_progress_bar()

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CORPUS = [
    "import pandas as pd\nfrom sklearn.linear_model import LogisticRegression\n",
    "train = pd.read_csv('input/train.csv')\nprint(train.head())\n",
    "hello held help, the task is to predict the target column from the features\n",
]
SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}


def make_tokenizer(*, pad: bool = True, template: str | None = TEMPLATE, **special: str) -> PreTrainedTokenizerFast:
    """Byte-level BPE of 320 tokens over three lines of Python; eos is <|im_end|>."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = ["<|pad|>", "<|im_start|>", "<|im_end|>", *special.values()]
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=names,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
        **({"pad_token": "<|pad|>"} if pad else {}),
        **special,
    )
    fast.chat_template = template
    return fast


def save_model(folder: Path, *, kind: str = "llama", tokenizer: Any = None, std: float = 0.2, **shape: Any) -> Path:
    """Save a random model of architecture `kind` and its tokenizer in Hugging Face format; equal arguments, equal bits.

    `std` spreads the weights so that logits differ visibly between tokens.
    """
    tokenizer = tokenizer or make_tokenizer()
    config = AutoConfig.for_model(
        kind,
        **{
            "vocab_size": len(tokenizer) + 4,  # padded, as real checkpoints are
            "bos_token_id": None,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
            "tie_word_embeddings": True,
            "initializer_range": std,
            **SHAPE,
            **shape,
        },
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the tiny random Llama (read-only by convention)."""
    return save_model(tmp_path_factory.mktemp("tiny-llama"))


@pytest.fixture
def build_tokenizer() -> Callable[..., PreTrainedTokenizerFast]:
    """`make_tokenizer`, which tests reach as a fixture because a conftest cannot be imported."""
    return make_tokenizer


@pytest.fixture
def build_model() -> Callable[..., Path]:
    """`save_model`, likewise."""
    return save_model


@pytest.fixture
def make_policy(tiny_folder: Path) -> Callable[..., Policy]:
    """`make_policy(**settings)`: a policy on the CPU, of the tiny folder unless `policy=` names another.

    One thread: products this small gain nothing from two, and on a busy machine two wait for each other.
    """

    def build(**settings: Any) -> Policy:
        return load_policy(make_config({"policy": str(tiny_folder), "device": "cpu", "threads": 1, **settings}))

    return build


@pytest.fixture
def tiny_policy(make_policy: Callable[..., Policy]) -> Policy:
    """The tiny Llama, trained in full, fp32."""
    return make_policy()
