"""The words of the workbench as frozen records: task data flows through these and nothing else.

A `State` is rendered into a prompt, the policy answers with an `Action`, the sandbox says what it did (`Feedback`),
a `Reward` is computed, and the four together are one `Turn`. The turns of one state in one step form a `Group`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Kind(StrEnum):
    """What the policy is asked to do in a state of an ML-engineering task."""

    DRAFT = "draft"
    DEBUG = "debug"
    IMPROVE = "improve"


class Verdict(StrEnum):
    """What happened to one execution; exactly one per run."""

    OK = "ok"
    WRONG_ANSWER = "wrong_answer"
    RUNTIME_ERROR = "runtime_error"
    TIMEOUT = "timeout"
    MEMORY_LIMIT = "memory_limit"
    OUTPUT_LIMIT = "output_limit"
    INVALID_SUBMISSION = "invalid_submission"
    INFRASTRUCTURE = "infrastructure"
    """Lost by us, not by the program: retried once, then left out of statistics, loss and every denominator."""


class StopReason(StrEnum):
    """Why sampling of an action ended."""

    EOS = "eos"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class State:
    """AceGRPO's x: what a prompt is rendered from. Roots are drafts; the rest are made by Φ (learning/buffer.py)."""

    task: str
    """Task id."""
    kind: Kind
    code: str = ""
    """The previous script; empty for a draft."""
    error: str = ""
    """Why the previous script had no valid submission (last error line or the grader's reason); empty unless debug."""
    output: str = ""
    """Trimmed execution output (stderr for debug, stdout for improve) that the prompt may show."""
    score: float | None = None
    """Validation score the previous script printed of itself; None when it printed none. Never a hidden score."""
    parent: str | None = None
    """Id of the state whose action made this one."""

    @property
    def id(self) -> str:
        """Content hash of (task, kind, code, error): equal states have equal ids, in every run."""
        signature = "\0".join((self.task, self.kind, self.code, self.error))
        return hashlib.sha256(signature.encode("utf-8", "surrogatepass")).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Action:
    """One completion of the policy, as sampled: ids are never re-tokenised."""

    text: str
    token_ids: tuple[int, ...]
    sampler_logprobs: tuple[float, ...]
    """log_softmax(logits / temperature) of each sampled id, nats, same length as `token_ids`."""
    policy_version: int
    stop_reason: StopReason


@dataclass(frozen=True, slots=True)
class Feedback:
    """What the sandbox and the grader said of an action."""

    verdict: Verdict
    code: str | None
    """The script found in the action's text; None when there was none (then nothing was run)."""
    failure: str | None = None
    """Failure kind for reports (`agent/environment.py: FAILURES`); None when the submission is valid."""
    reason: str | None = None
    """One sentence: last error line, or why the submission is invalid."""
    stdout: str = ""
    stderr: str = ""
    cpu_s: float = 0.0
    wall_s: float = 0.0
    score: float | None = None
    """Hidden metric on the rows of split `reward`; never shown to the agent."""
    own_score: float | None = None
    """Validation score that the script printed of itself; what the agent may see."""
    submission_sha: str | None = None
    """SHA-256 of what the submission says of each id, where it is valid and that is known, else of its bytes; equal
    submissions are recognised by it."""

    @property
    def valid(self) -> bool:
        return self.score is not None


@dataclass(frozen=True, slots=True)
class Reward:
    """A total in [0, 1] and its raw components by name."""

    total: float
    components: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Turn:
    """One record: state, action, feedback, reward."""

    state: State
    action: Action
    feedback: Feedback
    reward: Reward | None
    """None when unscorable (`infrastructure`): such a turn enters no statistic and no loss."""
    group_id: str
    trajectory_id: str
    stage: str = "draft#1"
    """(kind, occurrence) within its trajectory."""


@dataclass(frozen=True, slots=True)
class Group:
    """The turns of one state in one step, with the prompt ids they all share."""

    id: str
    state: State
    prompt_ids: tuple[int, ...]
    turns: tuple[Turn, ...]

    @property
    def rewards(self) -> list[float]:
        """Totals of the scorable turns."""
        return [turn.reward.total for turn in self.turns if turn.reward is not None]


class WorkbenchError(Exception):
    """A mistake the user can mend. The message is one sentence: the value, what was expected, what to do."""
