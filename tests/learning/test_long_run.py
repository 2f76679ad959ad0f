"""Memory over a long run: what is kept per step must not add up."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import psutil
import pytest

from workbench.config import make_config
from workbench.control import Control
from workbench.learning.opening import create_run
from workbench.learning.trainer import Trainer

STEPS, WARM, WINDOW = 200, 40, 20
GROWTH = 1.03


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_memory_stays_where_it_was_after_the_first_steps(tmp_path: Path) -> None:
    """A real run: sampling, programs, updates, buffer, records; the resident memory of its process after each step."""
    config = make_config(steps=STEPS, groups=2, group_size=4, max_completion_tokens=128, eval_drafts=0)
    run = create_run(config, tmp_path / "run")
    process, seen = psutil.Process(), list[float]()
    trainer = Trainer(run, Control(config))
    try:
        for step in range(1, STEPS + 1):
            trainer.step(trainer.control.boundary(step), step)
            seen.append(process.memory_info().rss / 1e6)
    finally:
        trainer.close()
        run.close()
    early, late = median(seen[WARM : WARM + WINDOW]), median(seen[-WINDOW:])
    assert late < GROWTH * early, f"{early:.0f} MB after {WARM} steps, {late:.0f} MB after {STEPS}"
