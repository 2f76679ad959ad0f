"""The pairs to learn from: drafts, debugs of really executed failures, improvements of valid scripts."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from workbench.agent.prompts import render
from workbench.learning.warmstart import execute, grammar, schemas
from workbench.types import Kind, State

BUDGET = 384
EXECUTED = 1_000_000
"""Schemas from this seed on have tables and are executed; those below are drafts only."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One prompt and several scripts that answer it, each a sample of what a beginner might write."""

    kind: str
    prompt: str
    scripts: tuple[str, ...]


def rough_count(text: str) -> int:
    """Tokens of a prompt before there is a tokenizer, on the safe side."""
    return len(text) // 5


def draft(seed: int, n: int = 3) -> Pair:
    """Pair number `seed` of kind draft."""
    schema = schemas.make_schema(seed)
    rng = random.Random(f"draft {seed}")
    prompt = render(State("", Kind.DRAFT), schemas.quick_card(schema), budget=BUDGET, count=rough_count)
    return Pair("draft", prompt, tuple(grammar.script(grammar.draw(rng, schema), schema) for _ in range(n)))


def executed(
    seeds: Sequence[int], workers: int = 2, n: int = 4, report: Callable[[int], None] | None = None
) -> Iterator[Pair]:
    """A debug or an improve pair for each seed, from what the first script really did."""
    plans = [grammar.draw(random.Random(f"first {seed}"), schemas.make_schema(seed)) for seed in seeds]
    jobs = [(seed, misnamed(seed, plan)) for seed, plan in zip(seeds, plans, strict=True)]
    for index, outcome in enumerate(execute.run_all(jobs, workers)):
        if report:
            report(index + 1)
        yield after(seeds[index], plans[index], jobs[index][1], outcome, n)


def misnamed(seed: int, plan: grammar.Plan) -> str:
    """The script of a plan; now and then with a name that is not the table's, as by a policy that copies badly."""
    schema, rng = schemas.make_schema(seed), random.Random(f"misnamed {seed}")
    if rng.random() < 0.3:
        field = rng.choice(("id_column", "target"))
        wrong = getattr(schema, field)[: rng.randint(1, 6)] + schemas.syllable(rng)
        schema = replace(schema, **{field: wrong})
    return grammar.script(plan, schema)


def after(seed: int, plan: grammar.Plan, code: str, outcome: execute.Outcome, n: int) -> Pair:
    """The pair that follows an execution."""
    schema = schemas.make_schema(seed)
    rng = random.Random(f"after {seed}")
    facts = schemas.table_card(schema, *schemas.tables(schema)[:3])
    if outcome.error:
        state = State("", Kind.DEBUG, code=code, error=outcome.error)
        plans = [grammar.repair(rng, schema, plan, outcome.error) for _ in range(n)]
    else:
        state = State("", Kind.IMPROVE, code=code, score=outcome.score)
        plans = [grammar.improve(rng, schema, plan) for _ in range(n)]
    scripts = tuple(text for text in (grammar.script(other, schema) for other in plans) if text != code)
    return Pair(state.kind.value, render(state, facts, budget=BUDGET, count=rough_count), scripts)


def build(drafts: int, executions: int, workers: int = 2, report: Callable[[int], None] | None = None) -> list[Pair]:
    """The whole corpus, in a fixed order that depends on nothing but the two sizes."""
    pairs = [draft(seed) for seed in range(drafts)]
    pairs += [pair for pair in executed(range(EXECUTED, EXECUTED + executions), workers, report=report) if pair.scripts]
    return pairs


def digest(pairs: Iterable[Pair]) -> str:
    """SHA-256 over all texts, in order."""
    hasher = hashlib.sha256()
    for pair in pairs:
        hasher.update(json.dumps(asdict(pair), ensure_ascii=False).encode("utf-8"))
    return hasher.hexdigest()


def save(pairs: Iterable[Pair], path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(asdict(pair), ensure_ascii=False) + "\n" for pair in pairs)


def load(path: Path) -> list[Pair]:
    with path.open(encoding="utf-8") as file:
        rows = (json.loads(line) for line in file)
        return [Pair(row["kind"], row["prompt"], tuple(row["scripts"])) for row in rows]
