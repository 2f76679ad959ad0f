"""The model card of the tiny policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def model_card(facts: Mapping[str, Any]) -> str:
    """README.md of the policy's folder, from the facts of its making (see `rebuild`)."""
    sizes, recipe, quality = facts["sizes"], facts["recipe"], facts["quality"]
    size, tokens = f"{facts['parameters'] / 1e6:.2f} M", f"{recipe['tokens'] / 1e6:.1f} M"
    return f"""---
license: apache-2.0
language: [en]
pipeline_tag: text-generation
library_name: transformers
---

# The tiny policy

A Llama of {size} parameters ({recipe["layers"]} layers of width {recipe["width"]}, vocabulary {recipe["vocabulary"]})
that writes short pandas and scikit-learn scripts for tabular tasks. It is the start of training in this workbench,
small enough to learn on two CPU cores in minutes, and imperfect on purpose: it writes what a beginner would, and much
of that fails for reasons that lie in the task (missing values, text columns, labels where probabilities are wanted, a
weak model). It is of no use for anything else.

## How it was made

`workbench warmstart` rebuilds it: {sizes["drafts"]:,} drafts, {sizes["executions"]:,} scripts executed on random tables
(those that failed, with their real error line, teach debugging, the others improving), and {tokens} tokens of training
in bfloat16 autocast. All table, column and label names are made of random
syllables; the generator knows nothing of the tasks in `data/tasks`. No text of other sources was used.

Corpus SHA-256: `{facts["corpus_sha256"]}`

## What it does on random tables it has never seen (128 tables, one draft each, temperature 1)

| | |
|---|---|
| drafts with a valid submission | {quality["valid_drafts"]:.0%} |
| failed drafts repaired in one try, given the error line | {quality["repaired"]:.0%} |
| drafts that name the id and target columns rightly | {quality["names_copied"]:.0%} |
| different scripts among 64 drafts of one table | {quality["distinct_of_64"]:.0f} |

Its prompts have at most 384 tokens, its scripts some seventy. Weights are stored in bfloat16 and run in float32.
"""
