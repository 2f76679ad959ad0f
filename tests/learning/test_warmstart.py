"""The warm start: the grammar, the corpus, the tokenizer, the rows, and the embedded policy that came of it."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.agent.cards import card
from workbench.agent.loading import TINY
from workbench.agent.policy import load_policy
from workbench.agent.prompts import messages, render
from workbench.config import make_config
from workbench.learning.warmstart import card as model_card
from workbench.learning.warmstart import corpus, execute, grammar, schemas, train
from workbench.learning.warmstart.rebuild import FACTS, compare
from workbench.learning.warmstart.tokenizer import ASSISTANT, BOS, train_tokenizer
from workbench.tasks.catalog import load_tasks
from workbench.types import Kind, State

TINY_RECIPE = train.Recipe(vocabulary=512, width=32, layers=2, heads=2, hidden=64, batch_tokens=1500, tokens=30_000)


@pytest.fixture(scope="module")
def pairs() -> list[corpus.Pair]:
    return [corpus.draft(seed) for seed in range(60)]


@pytest.fixture(scope="module")
def tokenizer(pairs):
    return train_tokenizer([text for pair in pairs for text in (pair.prompt, *pair.scripts)], 512)


@given(st.integers(0, 10**6))
@settings(max_examples=200, deadline=None)
def test_every_script_of_the_grammar_is_python_and_names_its_own_columns(seed: int) -> None:
    schema = schemas.make_schema(seed)
    rng = random.Random(seed)
    plan = grammar.draw(rng, schema)
    for other in (plan, grammar.good(rng, schema, plan), grammar.improve(rng, schema, plan)):
        text = grammar.script(other, schema)
        compile(text, "script.py", "exec")
        assert (f"ID = '{schema.id_column}'\n" in text) == (other.names == "literal")


def test_choices_that_suit_the_task_give_valid_submissions() -> None:
    rng = random.Random(0)
    jobs = []
    for seed in range(24):
        schema = schemas.make_schema(seed)
        plan = replace(grammar.good(rng, schema, grammar.draw(rng, schema)), family="tree", scale=False, score="none")
        jobs.append((seed, grammar.script(plan, schema)))
    errors = [execute.run_one(job).error for job in jobs]
    assert sum(not error for error in errors) >= 22, errors


def test_failures_lie_in_the_task_and_are_told_in_its_words() -> None:
    schema = next(s for s in map(schemas.make_schema, range(500)) if s.wants == "label" and grammar.has_text(s))
    plan = replace(grammar.good(random.Random(0), schema, grammar.draw(random.Random(0), schema)), family="tree")
    plan = replace(plan, missing="none", names="literal")
    text_columns = execute.run_one((schema.seed, grammar.script(replace(plan, encode="none", scale=False), schema)))
    assert text_columns.error.startswith("ValueError: could not convert string to float")
    answers = schemas.tables(schema)[3]
    rows = "".join(f"{value},0.5\n" for value in answers[schema.id_column])
    reason = execute.refuse(schema, answers, f"{schema.id_column},{schema.target}\n{rows}".encode())
    assert reason is not None
    assert "a label is wanted" in reason
    assert execute.refuse(schema, answers, None) == "no submission.csv was written."


def test_the_corpus_depends_on_its_sizes_only(tmp_path: Path) -> None:
    program = "from workbench.learning.warmstart import corpus\nprint(corpus.digest(corpus.build(30, 6, workers={})))"
    digests = {
        subprocess.run(
            [sys.executable, "-c", program.format(workers)],
            env={**os.environ, "PYTHONHASHSEED": str(workers)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for workers in (1, 2)
    }
    assert len(digests) == 1


def test_a_corpus_is_read_back_as_it_was_written(tmp_path: Path, pairs) -> None:
    corpus.save(pairs, tmp_path / "corpus.jsonl")
    assert corpus.load(tmp_path / "corpus.jsonl") == pairs


def test_the_generator_knows_no_name_of_the_embedded_tasks() -> None:
    ours: set[str] = set()
    for task in load_tasks("all"):
        facts = card(task)
        ours |= {column.name for column in facts.columns} | {facts.id_column, facts.target.name, *facts.submission}
        ours |= {example for column in (*facts.columns, facts.target) for example in column.examples}
    ours = {name.lower() for name in ours if len(name) >= 4}
    drawn: set[str] = set()
    for schema in map(schemas.make_schema, range(2000)):
        drawn |= {schema.id_column, schema.target, *schema.classes, *(feature.name for feature in schema.features)}
        drawn |= {value for feature in schema.features for value in feature.values}
    assert len({name.lower() for name in drawn} & ours) <= 8  # syllables may happen to be a word, such as `rain`
    for schema in map(schemas.make_schema, range(300)):
        text = grammar.script(grammar.draw(random.Random(schema.seed), schema), schema)
        assert not set(re.findall(r"'([^'\n]+)'", text)) - {schema.id_column, schema.target} & ours


def test_tokens_of_a_name_are_the_same_in_prompt_and_script(tokenizer) -> None:
    for name in ("bloor_xa9", "MiastPre", "q", "two words", "naïve_é", "a.b"):
        prompt, script = _tokens_inside(tokenizer, "Id: '", name), _tokens_inside(tokenizer, "ID = '", name)
        assert prompt == script
        assert tokenizer.decode(prompt) == name


def _tokens_inside(tokenizer, before: str, name: str) -> list[int]:
    """Tokens that overlap the name in `before + name + quote`; a token that reaches over its ends would show."""
    encoded = tokenizer(f"{before}{name}'\n", add_special_tokens=False, return_offsets_mapping=True)
    start, end = len(before), len(before) + len(name)
    return [
        token
        for token, (left, right) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
        if left < end and right > start
    ]


@given(st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=80))
@settings(max_examples=150, deadline=None)
def test_any_text_survives_the_tokenizer(text: str) -> None:
    tokenizer = _shared_tokenizer()
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text


def _shared_tokenizer():
    if not hasattr(_shared_tokenizer, "kept"):
        _shared_tokenizer.kept = train_tokenizer([corpus.draft(seed).prompt for seed in range(20)], 400)
    return _shared_tokenizer.kept


def test_a_chat_has_one_bos_and_ends_with_the_mark_of_the_answer(tokenizer) -> None:
    chat = [{"role": "user", "content": "hello\n"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text.count(BOS) == 1
    assert text.endswith(ASSISTANT)
    with_answer = tokenizer.apply_chat_template([*chat, {"role": "assistant", "content": "x = 1\n"}], tokenize=False)
    assert with_answer.startswith(text)
    assert with_answer.endswith(tokenizer.eos_token)


def test_several_scripts_in_a_row_are_learnt_as_if_each_stood_alone(pairs, tokenizer) -> None:
    model = train.make_model(TINY_RECIPE, tokenizer).eval()
    row = train.encode(pairs[:1], tokenizer)[0]
    ids, positions, mask, labels = train.collate([row])
    together = model(input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=False).logits
    start = len(row.prompt)
    for script in row.scripts:
        alone = model(input_ids=torch.tensor([[*row.prompt, *script]])).logits[0, len(row.prompt) :]
        torch.testing.assert_close(together[0, start : start + len(script)], alone, rtol=1e-4, atol=1e-5)
        assert labels[0, start : start + len(script)].tolist() == [*script[1:], -100]
        start += len(script)


def test_the_names_that_are_taught_inside_a_prompt_stood_in_it_before(pairs, tokenizer) -> None:
    taught = 0
    for row in train.encode(pairs, tokenizer):
        first, last = row.repeated
        text = tokenizer.decode(row.prompt[first:last])
        for name in re.findall(r"'([^'\n]+)'(?: |\n|$)", text.split(" text")[0]):
            assert name in tokenizer.decode(row.prompt[:first])
            taught += 1
    assert taught > 60


def test_stopped_training_goes_on_to_the_same_weights(tmp_path: Path, pairs, tokenizer) -> None:
    rows = train.encode(pairs, tokenizer)
    whole = train.train(rows, tokenizer, TINY_RECIPE, report=lambda line: None)

    class Stopped(Exception):
        pass

    def stop(line: str) -> None:
        raise Stopped

    recipe = TINY_RECIPE
    with pytest.raises(Stopped):
        train.train(rows, tokenizer, recipe, state=tmp_path / "state.pt", save_every_s=0, report=stop)
    assert (tmp_path / "state.pt").exists()
    again = train.train(rows, tokenizer, recipe, state=tmp_path / "state.pt", report=lambda line: None)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name


def test_training_lowers_the_loss(pairs, tokenizer) -> None:
    rows = train.encode(pairs, tokenizer)
    work = rows[:8]
    before = train.loss_of(train.make_model(TINY_RECIPE, tokenizer), work)[0].item()
    after = train.loss_of(train.train(rows, tokenizer, TINY_RECIPE, report=lambda line: None), work)[0].item()
    assert after < 0.9 * before


# --- the embedded policy


@pytest.fixture(scope="module")
def policy():
    return load_policy(make_config({"device": "cpu"}))


def facts() -> dict:
    return json.loads((TINY / FACTS).read_text())


def test_the_embedded_policy_is_small_and_stored_in_bfloat16(policy) -> None:
    from safetensors import safe_open

    assert sum(path.stat().st_size for path in TINY.iterdir()) <= 12e6
    with safe_open(TINY / "model.safetensors", "pt") as weights:
        assert Counter(weights.get_tensor(name).dtype for name in weights.keys()) == {  # noqa: SIM118
            torch.bfloat16: len(list(weights.keys()))
        }
    assert 2e6 <= policy.model.num_parameters() <= 5e6
    assert {parameter.dtype for parameter in policy.model.parameters()} == {torch.float32}


def test_the_model_card_says_what_was_measured() -> None:
    assert (TINY / "README.md").read_text() == model_card.model_card(facts())
    assert compare(facts(), facts()).startswith("the same corpus")
    quality = facts()["quality"]
    assert quality["valid_drafts"] >= 0.15
    assert quality["names_copied"] >= 0.7
    assert quality["repaired"] >= 0.3
    assert quality["distinct_of_64"] >= 16


@pytest.mark.parametrize("kind", list(Kind))
def test_prompts_of_the_embedded_tasks_fit_their_budget(policy, kind: Kind) -> None:
    script = grammar.script(grammar.draw(random.Random(1), schemas.make_schema(1)), schemas.make_schema(1)) * 2
    for task in load_tasks("all"):
        state = State(task.id, kind, code=script, error="ValueError: Input X contains NaN.", score=0.5)
        ids = policy.prompt_ids(messages(state, task, budget=384, count=policy.count_tokens))
        assert len(ids) <= 384
        assert ids.count(policy.tokenizer.bos_token_id) == 1


def test_prompts_of_random_tables_fit_their_budget(policy) -> None:
    for seed in range(200):
        text = render(
            State("", Kind.DRAFT), schemas.quick_card(schemas.make_schema(seed)), budget=384, count=policy.count_tokens
        )
        assert policy.count_tokens(text) <= 384


@pytest.mark.slow
def test_the_policy_is_as_good_as_its_card_says() -> None:
    from workbench.learning.warmstart.quality import measure

    measured, stated = measure(TINY, seed=1), facts()["quality"]
    assert abs(measured["valid_drafts"] - stated["valid_drafts"]) < 0.12
    assert measured["repaired"] > 0.3
    assert measured["names_copied"] > stated["names_copied"] - 0.12
