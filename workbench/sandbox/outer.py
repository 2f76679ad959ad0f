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

_TO_BECOME_ANOTHER = sum(1 << bit for bit in (0, 1, 3, 5, 6, 7))
"""CAP_CHOWN, DAC_OVERRIDE, FOWNER, KILL, SETGID and SETUID: root in a container may lack some."""
_TO_BUILD = 1 << 21 | 1 << 12
"""CAP_SYS_ADMIN and NET_ADMIN, to make namespaces without one of the user: root in a container mostly lacks them."""

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
        "mounts": [(mount.kind, mount.path, _origin(mount)) for mount in view.mounts],
        "job": mounts.JOB,
        "inside": None if builds_mounts() else NOBODY,
    }
    return [*python, str(HERE / "launch.py"), json.dumps(plan), *inside]


def _origin(mount: mounts.Mount) -> str:
    """Where `launch.py` finds what it binds: without links, which would lead into the new root there."""
    source = mount.source or mount.path
    return os.path.realpath(source) if mount.kind == "bind" else source


def _bubblewrap(view: mounts.View) -> list[str]:
    words = [shutil.which("bwrap") or "bwrap", "--die-with-parent", "--new-session"]
    words += ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if builds_mounts():  # real root builds the mounts, then the zygote gives root up: as root process limits are void
        words += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        # Not as 0 inside, where that is who we are: the namespace of a run could then not be given its user.
        words += ["--unshare-user", "--uid", f"{NOBODY}", "--gid", f"{NOBODY}", "--cap-drop", "ALL"]
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
    namespaces, uid = means.outer != "none", run_uid(means, view)
    real_uid = NOBODY if is_root() and uid is None and not namespaces else None
    counted = next((one for one in (uid, real_uid) if one is not None), os.getuid())
    return {
        "flavour": flavour,
        "mode": "namespaces" if namespaces else "process",
        "uid": uid,
        "real_uid": real_uid,
        "landlock": means.landlock,
        "filter": base64.b64encode(seccomp).decode(),
        "readable": [*view.readable, "/proc"] if namespaces else mounts.uncovered(view),
        "listable": list(view.listable),
        "writable": [view.temporary, "/dev/shm", *mounts.DEVICES] if namespaces else list(mounts.DEVICES),
        "job": mounts.JOB,
        "temporary": view.temporary,
        "hidden": [mounts.DATA, mounts.BOX],
        "tasks": 2 if namespaces and _counts_per_namespace() else _tasks_of_user(counted) + 2,
    }


def is_root() -> bool:
    """Whether we are root and may become the unprivileged user: not so in a user namespace that maps root alone."""
    mapped = os.getuid() == 0 and all(_maps(f"/proc/self/{name}_map") for name in ("uid", "gid"))
    return mapped and _holds(_TO_BECOME_ANOTHER)


def builds_mounts() -> bool:
    """Whether we are root with the right to make namespaces for others."""
    return is_root() and _holds(_TO_BUILD)


def _holds(capabilities: int) -> bool:
    with open("/proc/self/status") as file:
        held = next(int(line.split()[1], 16) for line in file if line.startswith("CapEff:"))
    return held & capabilities == capabilities


def _maps(path: str) -> bool:
    try:
        with open(path) as file:
            ranges = [tuple(map(int, line.split())) for line in file]
    except OSError:
        return True
    return any(first <= NOBODY < first + count for first, _, count in ranges)


def run_uid(means: Means, view: mounts.View) -> int | None:
    """The unprivileged user that root becomes inside; None: stay who we are."""
    if not is_root():
        return None
    if means.outer != "none":
        return NOBODY if builds_mounts() else None
    if not all(_reachable(path) for path in view.readable):
        return None  # the interpreter lies where nobody else may look (root's home): said in `missing`
    return NOBODY


def _reachable(path: str) -> bool:
    return all(os.stat(folder).st_mode & 0o001 for folder in Path(path).parents)


def _counts_per_namespace() -> bool:
    """Since Linux 5.14 the process limit counts a user namespace's own processes; before, all of the user's."""
    major, minor = (int("".join(c for c in part if c.isdigit()) or 0) for part in os.uname().release.split(".")[:2])
    return (major, minor) >= (5, 14)


def _tasks_of_user(uid: int) -> int:
    """Processes and threads whose real user is `uid`."""
    total = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/status", errors="replace") as file:
                facts = dict(line.split(":", 1) for line in file if line.startswith(("Uid:", "Threads:")))
        except OSError:
            continue
        if int(facts["Uid"].split()[0]) == uid:
            total += int(facts["Threads"])
    return total


def public_plan(folders: Mapping[Path, str]) -> dict[str, Path]:
    """Folder outside → name, as path inside → folder outside."""
    return {f"{mounts.DATA}/{name}": folder for folder, name in folders.items()}
