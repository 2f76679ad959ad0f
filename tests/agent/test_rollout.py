"""From states to groups with a real policy: which prompts are read, which are left out, what each member draws."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from workbench.agent.environment import Environment, Outcome
from workbench.agent.generate import HFGenerator
from workbench.agent.policy import Policy
from workbench.agent.prompts import TEMPLATE_RESERVE, PromptTooLong
from workbench.agent.rollout import Rollout, prompt_ids, rollout, tasks_by_id
from workbench.config import make_config
from workbench.sandbox.executor import Executor, Limits
from workbench.tasks.catalog import load_tasks
from workbench.types import Action, Kind, State

TASK = "used-cars"
DRAFT = State(TASK, Kind.DRAFT)
ENDLESS = State(TASK, Kind.DEBUG, code=("\U0001f40d" * 200 + "\n") * 20, error="SyntaxError: invalid character")
"""Cut to its shortest form it still has 8 lines of 80 characters of four tokens each."""


class Recording(HFGenerator):
    """The real generator, and the prompts that it was given."""

    def generate(self, prompts: Sequence[Sequence[int]], n: int, **settings: Any) -> list[list[Action]]:
        self.prompts = [tuple(prompt) for prompt in prompts]
        return super().generate(prompts, n, **settings)


@pytest.fixture
def policy(build_model: Callable[..., Path], make_policy: Callable[..., Policy], tmp_path: Path) -> Policy:
    return make_policy(policy=str(build_model(tmp_path / "long", max_position_embeddings=2048)))


@pytest.fixture(scope="module")
def environment() -> Iterator[Environment]:
    tasks = tasks_by_id(load_tasks(TASK))
    with Executor(data_roots=[task.public_dir for task in tasks.values()], workers=1) as executor:
        yield Environment(tasks, executor, Limits())


def budget(policy: Policy, environment: Environment) -> int:
    """Tokens that hold the whole draft and its template, and not much more."""
    return len(prompt_ids(policy, DRAFT, environment.tasks[TASK], 2000)) + 24


def act(
    policy: Policy, environment: Environment, states: Sequence[State], path: Sequence[object], *, tokens: int
) -> tuple[Rollout, Recording]:
    generator = Recording(policy)
    config = make_config(max_prompt_tokens=tokens, max_completion_tokens=6, group_size=4)
    return rollout(policy, generator, environment, states, config, seed_path=path), generator


def texts(result: Rollout) -> list[list[tuple[int, ...]]]:
    return [[turn.action.token_ids for turn in group.turns] for group in result.groups]


def test_a_prompt_over_its_budget_is_left_out_and_counted(policy: Policy, environment: Environment) -> None:
    tokens = budget(policy, environment)
    result, generator = act(policy, environment, [DRAFT, ENDLESS, DRAFT], (0, "train", 1), tokens=tokens)
    assert (result.unfit, result.kept) == ((ENDLESS,), (0, 2))
    assert [group.state.kind for group in result.groups] == [Kind.DRAFT, Kind.DRAFT]
    assert [group.prompt_ids for group in result.groups] == generator.prompts, "trained on what was read, id by id"
    assert all(len(prompt) <= tokens for prompt in generator.prompts)
    fitting, _ = act(policy, environment, [DRAFT, DRAFT, DRAFT], (0, "train", 1), tokens=tokens)
    assert fitting.unfit == ()
    assert texts(result) == [texts(fitting)[0], texts(fitting)[2]], "what is left out changes no other state's draws"


def test_what_a_template_adds_counts_against_the_budget(
    build_model: Callable[..., Path],
    build_tokenizer: Callable[..., Any],
    make_policy: Callable[..., Policy],
    environment: Environment,
    tmp_path: Path,
) -> None:
    """A default system message is longer than what is reserved: sections are cut for it as for anything else."""
    template = "You are a helpful assistant. " * 20 + build_tokenizer().chat_template
    folder = build_model(tmp_path, tokenizer=build_tokenizer(template=template), max_position_embeddings=2048)
    policy = make_policy(policy=str(folder))
    overhead = len(policy.prompt_ids([{"role": "user", "content": ""}]))
    assert overhead > TEMPLATE_RESERVE
    debug = State(TASK, Kind.DEBUG, code="x = 1\n" * 200, error="NameError: name 'y' is not defined")
    whole = len(prompt_ids(policy, debug, environment.tasks[TASK], 10_000))
    tokens = len(prompt_ids(policy, DRAFT, environment.tasks[TASK], 2000)) + 100
    assert whole > tokens + overhead
    result, generator = act(policy, environment, [debug, DRAFT], (0, "train", 1), tokens=tokens)
    assert (result.unfit, result.kept) == ((), (0, 1))
    assert all(tokens - overhead < len(prompt) <= tokens for prompt in generator.prompts)
    assert policy.tokenizer.decode(generator.prompts[0]).startswith("You are a helpful assistant. You are")
    with pytest.raises(PromptTooLong, match=rf"max_prompt_tokens={overhead} is too small for a draft"):
        act(policy, environment, [DRAFT], (0, "train", 1), tokens=overhead)


def test_a_draft_over_its_budget_is_the_users_to_mend(policy: Policy, environment: Environment) -> None:
    with pytest.raises(PromptTooLong, match=r"max_prompt_tokens=100 is too small for a draft of task 'used-cars'"):
        act(policy, environment, [DRAFT], (0, "train", 1), tokens=100)


def test_waiting_counts_from_the_last_token_on(
    policy: Policy, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = environment.submit

    def slow(task: str, action: Action) -> Callable[[], Outcome]:
        outcome = submit(task, action)
        return lambda: (time.sleep(0.1), outcome())[1]

    monkeypatch.setattr(environment, "submit", slow)
    result, _ = act(policy, environment, [DRAFT], (0, "train", 1), tokens=budget(policy, environment))
    assert 0.4 <= result.waited_s < 1.5, "four members, 0.1 s each"


def test_every_member_of_every_step_has_a_seed_of_its_own(policy: Policy, environment: Environment) -> None:
    tokens = budget(policy, environment)

    def drawn(*path: object) -> list[list[tuple[int, ...]]]:
        return texts(act(policy, environment, [DRAFT, DRAFT], path, tokens=tokens)[0])

    first = drawn(0, "train", 1)
    assert len({ids for group in first for ids in group}) == 8, "two groups of one prompt, and no action twice"
    assert drawn(0, "train", 1) == first
    for other in ((0, "train", 2), (1, "train", 1), (0, "drafts", 1)):
        assert drawn(*other) != first
