"""Rebuild the tiny policy: corpus, tokenizer, training, measurement, model card. Goes on where it was stopped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.agent import prompts
from workbench.learning.warmstart import corpus
from workbench.learning.warmstart.card import model_card
from workbench.learning.warmstart.corpus import Pair

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from workbench.learning.warmstart.train import Recipe

FACTS = "warmstart.json"
"""What a policy folder says of its making."""
SOURCES = ("schemas", "grammar", "execute", "corpus", "tokenizer", "train")
"""Modules of this folder that the result depends on; so it does on `workbench.agent.prompts`."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much corpus is made: a draft costs nothing, an execution some 0.07 s."""

    drafts: int = 20_000
    executions: int = 6_000


def key(sizes: Sizes, recipe: Recipe) -> str:
    """Eight hex digits that change with anything the result depends on, library versions aside."""
    hasher = hashlib.sha256(json.dumps([asdict(sizes), asdict(recipe)], sort_keys=True).encode())
    here = Path(__file__).parent
    for path in (*(here / f"{name}.py" for name in SOURCES), Path(prompts.__file__)):
        hasher.update(path.read_bytes())
    return hasher.hexdigest()[:8]


def rebuild(
    out: Path, scratch: Path, sizes: Sizes, recipe: Recipe, *, workers: int, report: Callable[[str], None]
) -> dict[str, Any]:
    """Write the policy into `out`; `scratch` keeps corpus, tokenizer and training state, so that a second call goes on.

    Returns the facts of `warmstart.json`: corpus hash, sizes, recipe, quality on unseen random tables.
    """
    from workbench.learning.warmstart.quality import measure, sentence
    from workbench.learning.warmstart.train import encode, save_policy, train

    scratch.mkdir(parents=True, exist_ok=True)
    pairs = _corpus(scratch / "corpus.jsonl", sizes, workers, report)
    digest = corpus.digest(pairs)
    report(f"corpus {digest[:12]}: {len(pairs)} prompts")
    tokenizer = _tokenizer(scratch / "tokenizer", pairs, recipe.vocabulary, report)
    model = train(encode(pairs, tokenizer), tokenizer, recipe, state=scratch / "state.pt", report=report)
    policy = scratch / "policy"
    save_policy(model, tokenizer, policy)
    report("measuring on unseen tables")
    quality = measure(policy, workers=workers)
    report(sentence(quality))
    facts = {
        "corpus_sha256": digest,
        "parameters": model.num_parameters(),
        "sizes": asdict(sizes),
        "recipe": asdict(recipe),
        "quality": quality,
    }
    (policy / FACTS).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    (policy / "README.md").write_text(model_card(facts), encoding="utf-8")
    out.mkdir(parents=True, exist_ok=True)
    for path in sorted(policy.iterdir()):
        aside = out / f".{path.name}.new"
        aside.write_bytes(path.read_bytes())
        aside.replace(out / path.name)
    return facts


def compare(new: dict[str, Any], old: dict[str, Any]) -> str:
    """One line on how a rebuilt policy compares with the one before: corpus hash, and quality in points."""
    same = "the same corpus" if new["corpus_sha256"] == old["corpus_sha256"] else "another corpus"
    gaps = {
        name: round(100 * (new["quality"][name] - old["quality"][name]))
        for name in ("valid_drafts", "repaired", "names_copied")
    }
    return f"{same} as before; " + ", ".join(f"{name} {gap:+d} points" for name, gap in gaps.items())


def _corpus(path: Path, sizes: Sizes, workers: int, report: Callable[[str], None]) -> list[Pair]:
    if not path.exists():

        def tell(done: int) -> None:
            if done % 100 == 0:
                report(f"executing scripts on random tables: {done} of {sizes.executions}")

        pairs = corpus.build(sizes.drafts, sizes.executions, workers, tell)
        aside = path.with_suffix(".new")
        corpus.save(pairs, aside)
        aside.replace(path)
    return corpus.load(path)


def _tokenizer(
    folder: Path, pairs: Sequence[Pair], vocabulary: int, report: Callable[[str], None]
) -> PreTrainedTokenizerFast:
    from workbench.learning.warmstart.tokenizer import load_tokenizer, train_tokenizer

    if not (folder / "tokenizer.json").exists():
        report("fitting the tokenizer")
        texts = (text for pair in pairs[::4] for text in (pair.prompt, *pair.scripts[:1]))
        train_tokenizer(texts, vocabulary).save_pretrained(folder)
    return load_tokenizer(folder)
