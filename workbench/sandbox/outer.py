"""How a zygote is started: the outer sandbox as a command line, and the messages a zygote is configured with."""

from __future__ import annotations

import base64
import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from workbench.sandbox import mounts

NOBODY = 65534
HERE = Path(__file__).parent

Tool = Literal["bubblewrap", "namespaces", "none"]


@dataclass(frozen=True, slots=True)
class Means:
    """What this machine gives to shut a run in; found by `isolation.probe()`."""

    outer: Tool
    """bubblewrap; or namespaces made by `launch.py`; or none (then the zygote is a plain child process)."""
    landlock: int
    """Version of Landlock to use; 0: none."""
    seccomp: bool


def command(means: Means, view: mounts.View, control: int) -> list[str]:
    """The argv of a zygote; `control` is the descriptor of its control socket, inherited."""
    python = [sys.executable, "-s", "-B"]
    if means.outer == "none":
        return [*python, str(HERE / "zygote.py"), str(control)]
    inside = [*python, f"{mounts.BOX}/zygote.py", str(control)]
    if means.outer == "bubblewrap":
        return [*_bubblewrap(view), *inside]
    plan = {
        "parents": mounts.parents(view.mounts),
        "mounts": [(mount.kind, mount.path, mount.source or mount.path) for mount in view.mounts],
        "job": mounts.JOB,
    }
    return [*python, str(HERE / "launch.py"), json.dumps(plan), *inside]


def _bubblewrap(view: mounts.View) -> list[str]:
    words = [shutil.which("bwrap") or "bwrap", "--die-with-parent", "--new-session"]
    words += ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if os.getuid() == 0:  # real root builds the mounts, then the zygote gives root up: as root process limits are void
        words += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        words += ["--unshare-user"]
    for path in mounts.parents(view.mounts):
        words += ["--perms", "0755", "--dir", path]
    for mount in view.mounts:
        words += {
            "bind": ["--ro-bind", mount.source, mount.path],
            "device": ["--dev-bind", mount.path, mount.path],
            "tmpfs": ["--perms", "0755", "--tmpfs", mount.path],
            "symlink": ["--symlink", mount.source, mount.path],
        }[mount.kind]
    words += ["--proc", "/proc"]
    for path in [mount.path for mount in view.mounts if mount.kind == "tmpfs"] + ["/"]:
        words += ["--remount-ro", path]
    return [*words, "--hostname", "sandbox", "--chdir", mounts.JOB, "--"]


def environment(view: mounts.View) -> dict[str, str]:
    """The whole environment of a run: the same on every machine but for the paths of the interpreter."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1")
    return threads | {
        "PATH": f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin",
        "HOME": view.temporary,
        "TMPDIR": view.temporary,
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "MPLBACKEND": "Agg",
        "JOBLIB_MULTIPROCESSING": "0",  # loky needs more than a run may have; joblib then works in this process
        "MALLOC_ARENA_MAX": "2",
        "ARROW_DEFAULT_MEMORY_POOL": "system",
    }


def configuration(means: Means, view: mounts.View, flavour: str, seccomp: bytes) -> dict[str, Any]:
    """The first message to a zygote."""
    namespaces = means.outer != "none"
    return {
        "flavour": flavour,
        "mode": "namespaces" if namespaces else "process",
        "uid": run_uid(means, view),
        "real_uid": NOBODY if os.getuid() == 0 and run_uid(means, view) is None else None,
        "landlock": means.landlock,
        "filter": base64.b64encode(seccomp).decode(),
        "readable": [*view.readable, "/proc"] if namespaces else mounts.uncovered(view),
        "listable": list(view.listable),
        "writable": [view.temporary, "/dev/shm", *mounts.DEVICES] if namespaces else list(mounts.DEVICES),
        "job": mounts.JOB,
        "temporary": view.temporary,
        "hidden": [mounts.DATA, mounts.BOX],
        "tasks": 2 if namespaces and _counts_per_namespace() else _tasks_of_user(run_uid(means, view)) + 2,
    }


def run_uid(means: Means, view: mounts.View) -> int | None:
    """The unprivileged user that root becomes inside; None: stay who we are."""
    if os.getuid() != 0:
        return None
    if means.outer == "none" and not all(_reachable(path) for path in view.readable):
        return None  # the interpreter lies where nobody else may look (root's home): said in `missing`
    return NOBODY


def _reachable(path: str) -> bool:
    return all(os.stat(folder).st_mode & 0o001 for folder in Path(path).parents)


def _counts_per_namespace() -> bool:
    """Since Linux 5.14 the process limit counts a user namespace's own processes; before, all of the user's."""
    major, minor = (int("".join(c for c in part if c.isdigit()) or 0) for part in os.uname().release.split(".")[:2])
    return (major, minor) >= (5, 14)


def _tasks_of_user(uid: int | None) -> int:
    wanted, total = os.getuid() if uid is None else uid, 0
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == wanted:
                total += len(os.listdir(f"/proc/{name}/task"))
        except OSError:
            continue
    return total


def public_plan(folders: Mapping[Path, str]) -> dict[str, Path]:
    """Folder outside → name, as path inside → folder outside."""
    return {f"{mounts.DATA}/{name}": folder for folder, name in folders.items()}
