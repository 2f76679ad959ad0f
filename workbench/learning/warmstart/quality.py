"""How good a warm-started policy is on random tables that it has never seen: valid drafts, repairs, copied names."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.agent.cards import Card
from workbench.agent.completions import parse_code, parse_own_score
from workbench.agent.prompts import render
from workbench.learning.warmstart import execute, schemas
from workbench.learning.warmstart.corpus import BUDGET
from workbench.learning.warmstart.schemas import Schema
from workbench.types import Kind, State, Verdict

if TYPE_CHECKING:
    from workbench.agent.generate import HFGenerator
    from workbench.agent.policy import Policy
    from workbench.sandbox.executor import Executor, Limits, Result

UNSEEN = 2_000_000
"""Schemas from this seed on are never learnt from."""


@dataclass(frozen=True, slots=True)
class _Table:
    """An unseen random task, its public files in a folder."""

    schema: Schema
    card: Card
    folder: Path


def measure(folder: Path, *, tables: int = 128, workers: int = 2, seed: int = 0) -> dict[str, float]:
    """Shares over `tables` unseen tables, one draft each at temperature 1, one repair of each that failed.

    `valid_drafts`, `repaired` (of the failed), `names_copied` (drafts whose ID and TARGET are the table's),
    `distinct_of_64` (different scripts among 64 drafts of one table). Scripts run in the sandbox.
    """
    from workbench.agent.generate import HFGenerator
    from workbench.agent.policy import load_policy
    from workbench.config import make_config
    from workbench.sandbox.executor import Executor, Limits

    config = make_config({"policy": str(folder), "device": "cpu"})
    policy = load_policy(config)
    generator = HFGenerator(policy)
    limits = Limits(cpu_s=config.cpu_s, wall_s=config.wall_s, memory_mb=config.memory_mb)
    with _tables(range(UNSEEN, UNSEEN + tables)) as made:
        states = [State(str(table.schema.seed), Kind.DRAFT) for table in made]
        drafts = _act(policy, generator, states, made, seed)
        with Executor([made[0].folder.parents[1]], workers) as executor:
            errors = _run(executor, limits, made, drafts)
            failed = [index for index, (error, _) in enumerate(errors) if error]
            debugs = [
                State(states[i].task, Kind.DEBUG, code=parse_code(drafts[i]) or "", error=errors[i][0]) for i in failed
            ]
            again = [made[i] for i in failed]
            repairs = _run(executor, limits, again, _act(policy, generator, debugs, again, seed + 1)) if failed else []
        first = _prompt(policy, State("", Kind.DRAFT), made[0].card)
        many = generator.generate(
            [first], 64, temperature=1.0, max_new_tokens=256, seeds=[[seed * 64 + n for n in range(64)]]
        )[0]
    return {
        "valid_drafts": 1 - len(failed) / tables,
        "repaired": sum(not error for error, _ in repairs) / max(1, len(failed)),
        "names_copied": sum(_copied(text, table.schema) for text, table in zip(drafts, made, strict=True)) / tables,
        "distinct_of_64": len({action.text for action in many}),
    }


def _copied(text: str, schema: Schema) -> bool:
    """Whether the script names its two columns right, written out or taken from the sample submission."""
    literal = f"ID = '{schema.id_column}'\nTARGET = '{schema.target}'\n"
    return any(lines in text for lines in (literal, "ID, TARGET = sub.columns\n", "ID = sub.columns[0]\nTARGET = ["))


def _prompt(policy: Policy, state: State, card: Card) -> list[int]:
    content = render(state, card, budget=BUDGET, count=policy.count_tokens)
    return policy.prompt_ids([{"role": "user", "content": content}])


def _act(
    policy: Policy, generator: HFGenerator, states: Sequence[State], tables: Sequence[_Table], seed: int
) -> list[str]:
    prompts = [_prompt(policy, state, table.card) for state, table in zip(states, tables, strict=True)]
    rng = random.Random(f"quality {seed}")
    seeds = [[rng.randrange(2**31)] for _ in prompts]
    return [
        actions[0].text for actions in generator.generate(prompts, 1, temperature=1.0, max_new_tokens=256, seeds=seeds)
    ]


def _run(
    executor: Executor, limits: Limits, tables: Sequence[_Table], texts: Sequence[str]
) -> list[tuple[str, float | None]]:
    """(what was wrong, own score) of each script; nothing was wrong when the first is empty."""
    from workbench.sandbox.executor import Request

    waiting: list[Future[Result] | None] = []
    for table, text in zip(tables, texts, strict=True):
        code = parse_code(text)
        waiting.append(executor.submit(Request(code, table.folder, limits=limits)) if code else None)
    return [
        _verdict(table, future.result()) if future else ("no code", None)
        for table, future in zip(tables, waiting, strict=True)
    ]


def _verdict(table: _Table, result: Result) -> tuple[str, float | None]:
    from workbench.agent.environment import failure_reason

    if result.verdict is not Verdict.OK:
        return failure_reason(result), None
    answers = schemas.tables(table.schema)[3]
    return execute.refuse(table.schema, answers, result.submission) or "", parse_own_score(result.stdout)


@contextmanager
def _tables(seeds: Sequence[int]) -> Iterator[list[_Table]]:
    """Unseen tables written as tasks' public files, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="workbench-tables-") as root:
        yield [_write(Path(root) / str(seed) / "public", seed) for seed in seeds]


def _write(folder: Path, seed: int) -> _Table:
    schema = schemas.make_schema(seed)
    train, test, sample, _ = schemas.tables(schema)
    folder.mkdir(parents=True)
    for name, frame in (("train", train), ("test", test), ("sample_submission", sample)):
        frame.to_csv(folder / f"{name}.csv", index=False)
    return _Table(schema, schemas.table_card(schema, train, test, sample), folder)


def sentence(quality: Mapping[str, float]) -> str:
    """One line for people."""
    return (
        f"valid drafts {quality['valid_drafts']:.0%}, repaired {quality['repaired']:.0%}, names copied "
        f"{quality['names_copied']:.0%}, {quality['distinct_of_64']:.0f} distinct scripts among 64 drafts"
    )
