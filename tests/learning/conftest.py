"""A policy that writes scripts from the start, and property tests that take the same examples every time.

The policy is a random Llama whose vocabulary holds whole lines of a script as single tokens, and whose last layer
prefers them: its actions are scripts that run, fail, or are graded, in a few tokens. Nothing of it is learned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from workbench.agent.prompts import INSTRUCTION

settings.register_profile("learning", deadline=None, derandomize=True)
settings.load_profile("learning")
transformers_logging.disable_progress_bar()

WORDS = (
    "Guidelines: answer with a single ```python block that holds the whole script; use pandas and scikit-learn; handle "
    "missing values and text columns; estimate the metric on rows held out from train.csv; the script has a few "
    "seconds of CPU time and no network."
)
TEMPLATE = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}>{% endif %}"
HEAD = "import pandas as pd\ns = pd.read_csv('input/sample_submission.csv')\nc = s.columns[1]\n"
SAVE = "s.to_csv('submission.csv', index=False)\n"
LINES = (
    HEAD,
    SAVE,
    HEAD + "s[c] = s[c] * 1.5\n" + SAVE,
    HEAD + "s[c] = s[c] * 0.5\n",
    HEAD + "s[c] = s[c] + 7\n" + SAVE + "print('Validation score: 0.5')\n",
    "raise ValueError('no')\n",
    "I do not know.\n",
)
SHAPE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}


def make_tokenizer(lines: Sequence[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE over the prompts' own words, with each of `lines` as one ordinary token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<|pad|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([WORDS, INSTRUCTION, *LINES], trainer)
    tokenizer.add_tokens([AddedToken(line, normalized=False) for line in lines])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<|pad|>", eos_token="<|end|>")
    fast.chat_template = TEMPLATE
    return fast


def save_policy(folder: Path, lines: Sequence[str] = LINES) -> Path:
    """Save the policy: `lines` and the end are about equally likely, any other token is next to impossible."""
    tokenizer = make_tokenizer(lines)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        tie_word_embeddings=False,
        max_position_embeddings=1024,
        initializer_range=0.2,
        mlp_bias=True,
        **SHAPE,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
    wanted = [*tokenizer.convert_tokens_to_ids(list(lines)), tokenizer.eos_token_id]
    with torch.no_grad():
        model.model.layers[-1].mlp.down_proj.bias[0] = 30.0  # one coordinate is nearly constant at the head
        model.lm_head.weight[:, 0] = -10.0
        model.lm_head.weight[wanted, 0] = 0.0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def policy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the policy (read-only by convention)."""
    return save_policy(tmp_path_factory.mktemp("scripts"))


@pytest.fixture
def build_policy() -> Callable[..., Path]:
    """`save_policy`, which tests reach as a fixture because a conftest cannot be imported."""
    return save_policy
