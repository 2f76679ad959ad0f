"""How long the rest of a run will take, by what its own parts took; unknown until that says something."""

from __future__ import annotations

from collections import deque
from statistics import median

RECENT = 10
"""Steps that the estimate is a median of: what one takes changes as the policy learns, and a script may hang in one."""


class Pace:
    """Seconds of steps and of measured drafts, and what follows for those to come.

    The first step of a process is left out: caches are filled and the sandbox is warmed in it.
    """

    def __init__(self) -> None:
        self._warm = False
        self._steps: deque[tuple[float, float]] = deque(maxlen=RECENT)
        self._draft_s: float | None = None

    def add_step(self, seconds: float, acting_s: float, actions: int) -> None:
        """A step that took `seconds`, of them `acting_s` to sample and run its `actions`."""
        if self._warm:
            self._steps.append((seconds, acting_s / max(actions, 1)))
        self._warm = True

    def add_drafts(self, drafts: int, seconds: float) -> None:
        """A measurement's whole batches so far: drafts of one batch come together, so that a part of it says little."""
        self._draft_s = seconds / drafts

    def left_s(self, steps: int, drafts: int) -> float | None:
        """Seconds for so many steps and drafts more; None while one of the two is unknown.

        Until drafts were measured, one is taken for an action of a step.
        """
        if steps <= 0 and drafts <= 0:
            return 0.0
        draft_s = self._draft_s
        if self._steps and draft_s is None:
            draft_s = median(acting for _, acting in self._steps)
        if (steps > 0 and not self._steps) or (drafts > 0 and draft_s is None):
            return None
        step_s = median(seconds for seconds, _ in self._steps) if self._steps else 0.0
        return max(steps, 0) * step_s + max(drafts, 0) * (draft_s or 0.0)
