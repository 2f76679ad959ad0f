"""The isolation level of this machine, between two processes: a file, valid until boot, rights or code change.

Only the best level is kept there: what would give a better one, a package or a profile, would not be noticed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.sandbox.outer import HERE

FACTS = (
    "/proc/sys/kernel/random/boot_id",
    "/proc/self/attr/current",
    "/proc/self/uid_map",
    "/proc/sys/user/max_user_namespaces",
    "/proc/sys/kernel/unprivileged_userns_clone",
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
)
"""Files whose content decides what the kernel allows."""
_MOST = 8


def recall(without: Sequence[str]) -> dict[str, Any] | None:
    """What `keep` was given, when nothing has changed since."""
    stored = _read().get(_key(without))
    return stored if isinstance(stored, dict) else None


def keep(without: Sequence[str], found: Mapping[str, Any] | None) -> None:
    """Keep a result; None: forget. A file that cannot be written is no error."""
    key, known = _key(without), _read()
    if found is None and key not in known:
        return
    known.pop(key, None)
    known = dict(list(known.items())[1 - _MOST :]) | ({} if found is None else {key: found})
    place = _place()
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        aside = place.with_suffix(f".{os.getpid()}")
        aside.write_text(json.dumps(known))
        aside.replace(place)


def _read() -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        read = json.loads(_place().read_text())
        return read if isinstance(read, dict) else {}
    return {}


def _place() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "workbench" / "isolation.json"


def _key(without: Sequence[str]) -> str:
    """Changes with the boot, the container, the rights, the interpreter, bubblewrap and this package."""
    parts = [repr(tuple(without)), sys.executable, str(os.getuid()), str(Path.home()), " ".join(os.uname()[2:])]
    for path in FACTS:
        with contextlib.suppress(OSError):
            parts.append(Path(path).read_text())
    with contextlib.suppress(OSError):
        kept = ("CapEff", "Seccomp", "NoNewPrivs")
        parts += [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(kept)]
    bubblewrap = shutil.which("bwrap") or ""
    for path in ("/", "/proc/self/ns/user", bubblewrap):
        with contextlib.suppress(OSError):
            status = os.stat(path)
            changed = status.st_mtime_ns if path == bubblewrap else 0  # of a namespace it is the present time
            parts.append(f"{status.st_dev}:{status.st_ino}:{changed}")
    parts += [path.read_text() for path in sorted(HERE.glob("*.py"))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
