"""Each cheap attack many times, four at once, by whoever starts this: `repeat.py thin|full COUNT`. Prints JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace

from catalogue import PUBLIC, Attack, Bait, bait, catalogue, outside, patience

from workbench.sandbox.executor import Executor


def main() -> None:
    flavour, count = sys.argv[1], int(sys.argv[2])
    attacks = [attack for attack in catalogue() if attack.cheap and flavour in (attack.flavour, "full")]
    began = time.monotonic()
    with bait() as target, Executor([PUBLIC], workers=4, flavours=(flavour,)) as executor:  # type: ignore[arg-type]
        before = None
        faults: dict[str, list[str]] = {}
        for attack in attacks:
            if found := _again(executor, attack, target, flavour, count):
                faults[attack.name] = found
            before = before or _settle(executor)
        after = _settle(executor, before)
        if after != before:
            faults["outside"] = [f"{before} became {after}"]
        print(
            json.dumps(
                {
                    "root": os.getuid() == 0,
                    "level": executor.level,
                    "runs": count * len(attacks),
                    "seconds": round(time.monotonic() - began, 1),
                    "faults": faults,
                }
            )
        )


def _again(executor: Executor, attack: Attack, target: Bait, flavour: str, count: int) -> list[str]:
    request = replace(attack.request(target), flavour=flavour)  # type: ignore[arg-type]
    results = [future.result(120) for future in [executor.submit(request) for _ in range(count)]]
    found = {fault for result in results for fault in attack.faults(result, target.secrets)}
    verdicts = {result.verdict.value for result in results}
    if len(verdicts) > 1:
        found.add(f"verdicts {sorted(verdicts)}")
    return sorted(found | set(target.faults()))[:5]


def _settle(executor: Executor, wanted: object = None) -> dict[str, object]:
    began = time.monotonic()
    while time.monotonic() - began < patience(10):
        before = outside(executor)
        time.sleep(0.2)
        if outside(executor) == (wanted or before):
            break
    return outside(executor)


if __name__ == "__main__":
    main()
