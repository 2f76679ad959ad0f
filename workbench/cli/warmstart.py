"""`workbench warmstart [--out DIR]`."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from workbench.config import ROOT


def warmstart(out: Path) -> dict[str, Any]:
    """Rebuild the tiny policy into `out` and return the facts of its making; a second call goes on from where it was.

    Raises WorkbenchError when there is no sandbox to measure it in.
    """
    import torch

    from workbench.learning.warmstart.rebuild import FACTS, Sizes, compare, key, rebuild
    from workbench.learning.warmstart.train import Recipe

    torch.set_num_threads(min(2, os.cpu_count() or 1))
    sizes, recipe = Sizes(), Recipe()
    scratch = ROOT / "runs" / f".warmstart-{key(sizes, recipe)}"
    before = ROOT / "data" / "policy" / FACTS
    old = json.loads(before.read_text(encoding="utf-8")) if before.exists() else None
    print(f"Rebuilding the tiny policy into {out}: up to 90 minutes; what is done is kept in {scratch}.", flush=True)
    began = time.monotonic()

    def report(line: str) -> None:
        print(f"{(time.monotonic() - began) / 60:5.1f} min  {line}", file=sys.stderr, flush=True)

    facts = rebuild(out, scratch, sizes, recipe, workers=2, report=report)
    if old:
        report(compare(facts, old))
    return facts
