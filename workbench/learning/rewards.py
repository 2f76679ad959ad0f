"""The reward of one turn of an ML-engineering task: a ladder from no code to the gold medal (our choice, documented).

    0.00  no code                        0.10  ran, but no valid submission; or a copy of its parent or of the sample
    0.05  failed or over its limit       0.2 + 0.8 · position   a valid submission of its own

`position` is where the hidden score lies between the task's dummy (0) and its gold threshold (1). Steps are ordered so
that every rung is worth climbing, and the lowest valid submission is worth twice the best invalid one.
"""

from __future__ import annotations

import hashlib
import io
import math
import tokenize
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from workbench.tasks.task import Task, position, stamp
from workbench.types import Feedback, Group, Reward, State, Turn, Verdict, WorkbenchError

NO_CODE, FAILED, RAN, VALID = 0.0, 0.05, 0.10, 0.20
"""Rewards of the rungs; a valid submission adds (1 - VALID) · position."""


def score(state: State, feedback: Feedback, *, position: float | None, copied: bool) -> Reward | None:
    """Reward in [0, 1] with the components `code`, `ran`, `valid`, `copied` (0 or 1) and `position`, as measured.

    `position` in [0, 1] is needed for a valid submission and ignored otherwise. `copied`: the script is its parent's,
    or the submission is the sample. None when the execution was lost by us (`infrastructure`): that is not a 0.
    Raises WorkbenchError for a position that is missing, not finite or outside [0, 1].
    """
    if feedback.verdict is Verdict.INFRASTRUCTURE:
        return None
    ran = feedback.code is not None and feedback.verdict in (Verdict.OK, Verdict.INVALID_SUBMISSION)
    components = {
        "code": float(feedback.code is not None),
        "ran": float(ran),
        "valid": float(feedback.valid),
        "copied": float(copied),
    }
    if feedback.code is None:
        total = NO_CODE
    elif not ran:
        total = FAILED
    elif not feedback.valid:
        total = RAN
    else:
        components["position"] = _checked(position, state)
        total = RAN if copied else VALID + (1 - VALID) * components["position"]
    return Reward(total, components)


def _checked(position: float | None, state: State) -> float:
    if position is None or not math.isfinite(position) or not 0 <= position <= 1:
        raise WorkbenchError(
            f"position={position} of a submission to '{state.task}': expected a number in [0, 1], mend the grader."
        )
    return position


def score_groups(groups: Sequence[Group], tasks: Mapping[str, Task]) -> list[Group]:
    """The same groups with every turn's reward filled in (None: unscorable). Reads the rows of split `reward` only."""
    return [
        replace(group, turns=tuple(_scored(turn, tasks[turn.state.task]) for turn in group.turns)) for group in groups
    ]


def _scored(turn: Turn, task: Task) -> Turn:
    feedback = turn.feedback
    where = None if feedback.score is None else position(task, feedback.score, "reward")
    copied = is_copy(feedback.code or "", turn.state.code) or feedback.submission_sha in sample_shas(task.sample)
    return replace(turn, reward=score(turn.state, feedback, position=where, copied=copied))


def sample_shas(sample: Path) -> frozenset[str]:
    """SHA-256 of the sample submission as it lies there and as pandas writes it after reading it."""
    return _sample_shas(sample, stamp(sample))


@lru_cache(maxsize=1024)
def _sample_shas(path: Path, changed: tuple[int, int]) -> frozenset[str]:
    import pandas as pd

    forms = (path.read_bytes(), pd.read_csv(path).to_csv(index=False).encode())
    return frozenset(hashlib.sha256(form).hexdigest() for form in forms)


def is_copy(code: str, parent_code: str) -> bool:
    """Whether a script does nothing its parent does not: equal but for comments, blank lines and spacing."""
    return bool(parent_code.strip()) and _normalised(code) == _normalised(parent_code)


def _normalised(code: str) -> tuple[object, ...]:
    """The tokens that mean something; for text that is not Python its lines without surrounding space."""
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER)
    layout = (tokenize.INDENT, tokenize.DEDENT, tokenize.NEWLINE)
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(code.strip()).readline))
    except (tokenize.TokenError, SyntaxError):
        return tuple(line.strip() for line in code.splitlines() if line.strip())
    return tuple((t.type, "" if t.type in layout else t.string) for t in tokens if t.type not in skipped)
