"""The reward of one turn of an ML-engineering task: raw components by name, and a weighted total in [0, 1].

The default is the component `ladder` alone, from no code to the gold medal (our choice, documented):

    0.00  no code                        0.10  ran, but no valid submission; or its parent's or the sample again
    0.05  failed or over its limit       0.2 + 0.8 · position   a valid submission of its own

`position` is where the hidden score lies between the task's dummy (0) and its gold threshold (1). Steps are ordered so
that every rung is worth climbing, and the lowest valid submission is worth twice the best invalid one.

Every component of every turn is recorded, whatever its weight. Hidden scores are read here, after the action: none of
them enters a state or a prompt.
"""

from __future__ import annotations

import hashlib
import io
import math
import tokenize
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from workbench.agent.completions import is_python
from workbench.tasks.leaderboard import above_median, human_rank, medal
from workbench.tasks.mle import MleTask
from workbench.tasks.task import Task, position, stamp
from workbench.types import Feedback, Group, Kind, Reward, State, Turn, Verdict, WorkbenchError

NO_CODE, FAILED, RAN, VALID = 0.0, 0.05, 0.10, 0.20
"""Rewards of the rungs; a valid submission adds (1 - VALID) · position."""

MEDALS = {"gold": 1.0, "silver": 0.9, "bronze": 0.8, "above_median": 0.4, "valid": 0.2, "": 0.0}
"""Steps of the component `medal` (ours; in the order and about the proportions of SandMLE 2026)."""

BOARD = frozenset({"rank", "medal"})
"""Components that are read off a task's board."""

LADDER = {"ladder": 1.0}
"""The weights of the default reward."""

Known = Callable[[str, str], Feedback | None]
"""What is known of an earlier execution of (task id, script)."""


@dataclass(frozen=True, slots=True)
class Measures:
    """What a scorable turn came to. Numbers about a submission are None without a valid one."""

    code: bool
    ran: bool
    valid: bool
    copied: bool
    """The script is its parent's, or the submission is its parent's or the sample."""
    python: bool
    """The script compiles."""
    own_score: bool
    """It ran and printed a validation score of itself."""
    position: float | None = None
    rank: float | None = None
    """Share of the board that is not strictly better, in [0, 1]."""
    medal: str = ""
    """A key of `MEDALS`."""
    parent: float | None = None
    """Position of the parent's submission, 0 where it had no valid one; None for a draft, or where it is not known."""


def ladder(m: Measures) -> float:
    """The default: see the top of this file."""
    if not m.code:
        return NO_CODE
    if not m.ran:
        return FAILED
    if m.position is None or m.copied:
        return RAN
    return VALID + (1 - VALID) * m.position


def rank(m: Measures) -> float:
    """HumanRank on the rows `reward`: share of the board not strictly better; 0 without a valid submission of one's
    own."""
    return 0.0 if m.rank is None or m.copied else m.rank


def gain(m: Measures) -> float | None:
    """Position minus the parent's, in [-1, 1]; no valid submission of one's own counts as position 0. None for drafts:
    what has no parent gains nothing and loses nothing."""
    if m.parent is None:
        return None
    return (0.0 if m.position is None or m.copied else m.position) - m.parent


def medals(m: Measures) -> float:
    """The step of `MEDALS` that a submission of one's own reaches on the rows `reward`."""
    return 0.0 if m.copied else MEDALS[m.medal]


def well_formed(m: Measures) -> float:
    """1 where the answer held a script that is Python."""
    return float(m.code and m.python)


def own_score(m: Measures) -> float:
    """1 where the script ran and printed its own validation score, as it is asked to."""
    return float(m.own_score)


COMPONENTS: dict[str, Callable[[Measures], float | None]] = {
    "ladder": ladder,
    "rank": rank,
    "gain": gain,
    "medal": medals,
    "format": well_formed,
    "own_score": own_score,
}
"""What a reward may be made of (`config.reward`). None: it does not apply to this turn."""


def total(components: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """Σ w·c / Σ w over the components that apply, clipped to [0, 1] (`gain` may be negative), so that the best possible
    reward is 1 whatever the weights are. One component alone is left as it is, to the last bit."""
    known = [(weight, components[name]) for name, weight in weights.items() if name in components]
    whole = math.fsum(weight for weight, _ in known)
    found = known[0][1] if len(known) == 1 else math.fsum(weight * value for weight, value in known) / (whole or 1.0)
    return min(1.0, max(0.0, found))


def score(
    state: State,
    feedback: Feedback,
    *,
    position: float | None,
    copied: bool,
    task: Task | None = None,
    parent: float | None = None,
    weights: Mapping[str, float] = LADDER,
) -> Reward | None:
    """The total in [0, 1] and its components: `code`, `ran`, `valid`, `copied` (0 or 1) and `position` (of a valid
    submission) as measured, and those of `COMPONENTS` that apply.

    `position` in [0, 1] is needed for a valid submission and ignored otherwise. `copied` and
    `parent`: see `Measures`. Without `task`, whose board they need, `rank` and `medal`
    are left out. None when the execution was lost by us (`infrastructure`): that is not a 0. Raises WorkbenchError for
    a position that is missing, not finite or outside [0, 1], and for weights on what is left out.
    """
    if task is None and (boardless := weights.keys() & BOARD):
        raise WorkbenchError(f"The reward component '{min(boardless)}' needs the board of '{state.task}': give `task`.")
    if feedback.verdict is Verdict.INFRASTRUCTURE:
        return None
    ran = feedback.code is not None and feedback.verdict in (Verdict.OK, Verdict.INVALID_SUBMISSION)
    valid = ran and feedback.valid
    measures = Measures(
        code=feedback.code is not None,
        ran=ran,
        valid=feedback.valid,
        copied=copied,
        python=is_python(feedback.code or ""),
        own_score=ran and feedback.own_score is not None,
        position=_checked(position, state) if valid else None,
        rank=_rank(feedback, task) if valid else None,
        medal=_medal(feedback, task) if valid else "",
        parent=parent,
    )
    components = {name: float(getattr(measures, name)) for name in ("code", "ran", "valid", "copied")}
    if measures.position is not None:
        components["position"] = measures.position
    named = {name: of(measures) for name, of in COMPONENTS.items() if task is not None or name not in BOARD}
    components |= {name: value for name, value in named.items() if value is not None}
    return Reward(total(components, weights), components)


def _checked(position: float | None, state: State) -> float:
    if position is None or not math.isfinite(position) or not 0 <= position <= 1:
        raise WorkbenchError(
            f"position={position} of a submission to '{state.task}': expected a number in [0, 1], mend the grader."
        )
    return position


def _rank(feedback: Feedback, task: Task | None) -> float | None:
    if task is None or feedback.score is None:
        return None
    return human_rank(feedback.score, task.scores, task.higher_is_better)


def _medal(feedback: Feedback, task: Task | None) -> str:
    if task is None or feedback.score is None:
        return ""
    won = medal(feedback.score, task.thresholds, task.higher_is_better)
    return won or ("above_median" if above_median(feedback.score, task.thresholds, task.higher_is_better) else "valid")


def score_groups(
    groups: Sequence[Group],
    tasks: Mapping[str, Task],
    weights: Mapping[str, float] = LADDER,
    known: Known = lambda task, code: None,
) -> list[Group]:
    """The same groups with every turn's reward filled in (None: unscorable). Reads the rows of split `reward` only.

    `known` looks up what a state's script came to when it was run (`Environment.known`), for `gain` over it and to know
    its submission again.
    """
    scored = []
    for group in groups:
        state, task = group.state, tasks[group.state.task]
        parent = None if state.kind is Kind.DRAFT else known(state.task, state.code)
        turns = tuple(_scored(turn, task, weights, parent) for turn in group.turns)
        scored.append(replace(group, turns=turns))
    return scored


def _scored(turn: Turn, task: Task, weights: Mapping[str, float], parent: Feedback | None) -> Turn:
    feedback = turn.feedback
    others = sample_shas(task) | ({parent.submission_sha} if parent else frozenset())
    copied = is_copy(feedback.code or "", turn.state.code) or (feedback.submission_sha or "") in others
    reward = score(
        turn.state,
        feedback,
        position=_position(feedback, task),
        copied=copied,
        task=task,
        parent=None if parent is None else _position(parent, task) or 0.0,
        weights=weights,
    )
    return replace(turn, reward=reward)


def _position(feedback: Feedback, task: Task) -> float | None:
    return None if feedback.score is None else position(task, feedback.score, "reward")


def sample_shas(task: Task) -> frozenset[str]:
    """What a submission is known by that is the sample: its bytes as they lie there or as pandas writes them after
    reading, with whole numbers as they are or as fractions; and what it says of each id, for tasks of our own."""
    said = task.grade(task.sample.read_bytes(), "reward").content if isinstance(task, MleTask) else None
    return _sample_shas(task.sample, stamp(task.sample)) | ({said} if said else frozenset())


@lru_cache(maxsize=1024)
def _sample_shas(path: Path, changed: tuple[int, int]) -> frozenset[str]:
    import pandas as pd

    frame = pd.read_csv(path)
    fractions = frame.astype(
        dict.fromkeys(frame.columns[1:].intersection(frame.select_dtypes("integer").columns), float)
    )
    forms = (path.read_bytes(), *(each.to_csv(index=False).encode() for each in (frame, fractions)))
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
