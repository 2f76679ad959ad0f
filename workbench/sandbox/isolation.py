"""How well a run can be shut in on this machine: found out by attacking it, not by looking at versions.

| level | what it takes | what is weaker than the level above |
|---|---|---|
| A | B and a delegated cgroup v2 | (not used yet: the best level found is B) |
| B | bubblewrap, user namespaces, Landlock 6, seccomp | memory over several processes is polled |
| C | namespaces and seccomp; Landlock older than 6 or bubblewrap missing | one barrier less around files and signals |
| D | Landlock and seccomp, no namespaces (most containers) | other processes' names are visible, ended by a kill loop |
| E | none of it | model code runs with your rights: only limits and clean-up are left |
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import json
import logging
import os
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from workbench.sandbox import jail
from workbench.sandbox.outer import HERE, Means, Tool
from workbench.sandbox.syscalls import seccomp_filter
from workbench.types import WorkbenchError

log = logging.getLogger(__name__)

MEANS = ("bubblewrap", "namespaces", "landlock", "seccomp")
"""What `without` may name."""

_ALWAYS = {
    "read_secret",
    "read_home",
    "write_folder",
    "write_library",
    "connect",
    "send_datagram",
    "inherited_descriptor",
}
_ALWAYS |= {"read_supervisor", "read_parent_memory", "trace_parent", "new_namespace", "hidden_memory", "raise_limit"}
_BREACHES = {"B": _ALWAYS | {"signal_supervisor"}, "C": _ALWAYS | {"signal_supervisor"}, "D": _ALWAYS}
"""Attacks of the canary that must fail at a level."""


@dataclass(frozen=True, slots=True)
class Isolation:
    """What was found."""

    level: str
    missing: tuple[str, ...]
    """What this level does not give, one phrase each."""
    hints: tuple[str, ...]
    """How to get a better one, one sentence each; empty at B."""
    means: Means


def probe(without: Sequence[str] = ()) -> Isolation:
    """The best level that holds against the canary; remembered until the machine boots or the code changes.

    without: means not to use although they are there, of `MEANS`. Raises `WorkbenchError` where there is no Linux.
    """
    if unknown := set(without) - set(MEANS):
        raise WorkbenchError(f"'{min(unknown)}' is no means of isolation: expected some of {', '.join(MEANS)}.")
    if sys.platform != "linux":
        raise WorkbenchError(
            f"The sandbox needs Linux, this is {sys.platform}: run the workbench in Docker or in a Linux VM."
        )
    return _probe(tuple(sorted(without)))


@functools.cache
def _probe(without: tuple[str, ...]) -> Isolation:
    place, key = _cache_file(), _cache_key(without)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        stored = json.loads(place.read_text())[key]
        means = Means(**stored.pop("means"))
        return Isolation(stored["level"], tuple(stored["missing"]), tuple(stored["hints"]), means)
    found = _find(without)
    with contextlib.suppress(OSError):
        known: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            known = json.loads(place.read_text())
        known = dict(list(known.items())[-7:]) | {key: asdict(found)}
        place.parent.mkdir(parents=True, exist_ok=True)
        aside = place.with_suffix(f".{os.getpid()}")
        aside.write_text(json.dumps(known))
        aside.replace(place)
    return found


def require(min_level: str, *, unsafe: bool, without: Sequence[str] = ()) -> Isolation:
    """The level in use, said once in the log. Raises `WorkbenchError` when it is weaker than `min_level`.

    Level E needs `unsafe`, whatever `min_level` says; with `unsafe` it is accepted.
    """
    if min_level not in tuple("ABCDE"):
        raise WorkbenchError(f"min_level={min_level!r} is not accepted: expected A, B, C, D or E.")
    found = probe(without)
    remedy = " ".join(found.hints) or "See `workbench doctor`."
    if found.level == "E" and not unsafe:
        raise WorkbenchError(
            "Model code would run with your rights here (isolation level E): it could read your files and use your "
            "network. "
            f"{remedy} Or accept that with unsafe_executor=true."
        )
    if found.level > min_level and not (found.level == "E" and unsafe):
        raise WorkbenchError(f"Isolation level {found.level} is weaker than min_level={min_level}. {remedy}")
    _say_once(found)
    return found


@functools.cache
def _say_once(found: Isolation) -> None:
    tone = logging.INFO if found.level in "ABC" else logging.WARNING
    log.log(
        tone,
        "Scripts run at isolation level %s; not given: %s.",
        found.level,
        "; ".join(found.missing) or "nothing known",
    )


def filter_for(found: Isolation) -> bytes:
    return seccomp_filter() if found.means.seccomp else b""


def _find(without: tuple[str, ...]) -> Isolation:
    landlock = 0 if "landlock" in without else jail.landlock_abi()
    seccomp = "seccomp" not in without and _has_seccomp()
    outers: list[Tool] = []
    if "namespaces" not in without and jail.can_clone():
        outers += ["bubblewrap"] if "bubblewrap" not in without and shutil.which("bwrap") else []
        outers += ["namespaces"]
    problems = []
    for outer in (*outers, "none"):
        means = Means(outer, landlock, seccomp)
        level = _level(means)
        if level == "E":
            break
        breaches, problem = _attack(means)
        if not breaches & _BREACHES[level] and not problem:
            return _describe(level, means, breaches)
        problems.append(problem or f"{outer} did not hold against {', '.join(sorted(breaches & _BREACHES[level]))}")
        log.info("isolation level %s is not available: %s", level, problems[-1])
    return _describe("E", Means("none", landlock, seccomp), {"signal_supervisor"})


def _level(means: Means) -> str:
    """The level that these means can give at best."""
    if means.outer != "none" and means.seccomp:
        return "B" if means.outer == "bubblewrap" and means.landlock >= 6 else "C"
    return "D" if means.outer == "none" and means.landlock and means.seccomp else "E"


def _describe(level: str, means: Means, breaches: set[str]) -> Isolation:
    missing, hints = [], []
    if level == "E":
        missing.append("protection of your files, your network and your processes")
    if means.outer == "none":
        missing.append("private folders, and process names hidden (namespaces)")
        hints.append(_namespace_hint())
    elif means.outer == "namespaces":
        missing.append("the outer sandbox of bubblewrap; our own mounts stand in")
        hints.append("Install bubblewrap: `apt-get install bubblewrap` or `dnf install bubblewrap`.")
    if means.landlock < 6:
        missing.append(f"Landlock 6 (this kernel offers {means.landlock})")
        hints.append("Linux 6.12 or newer offers Landlock 6; check that `landlock` is among the lsm= of the kernel.")
    if "signal_supervisor" in breaches:
        missing.append("protection of your other processes against signals")
    if not means.seccomp:
        missing.append("the filter of system calls")
        hints.append("Install libseccomp: `apt-get install libseccomp2` and `pip install pyseccomp`.")
    missing.append("an exact memory limit over several processes (needs a cgroup v2 of our own)")
    return Isolation(level, tuple(missing), tuple(hints) if level != "B" else (), means)


def _namespace_hint() -> str:
    if os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"):
        return (
            "In a container, start it with `--security-opt seccomp=unconfined --security-opt apparmor=unconfined "
            "--security-opt systempaths=unconfined` and install bubblewrap."
        )
    with contextlib.suppress(OSError):
        if Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").read_text().strip() == "1":
            return (
                "AppArmor forbids user namespaces here: install and load the profile `bwrap-userns-restrict` "
                "(apparmor-profiles)."
            )
    return "Install bubblewrap and allow user namespaces (`sysctl user.max_user_namespaces`)."


def _has_seccomp() -> bool:
    try:
        return bool(seccomp_filter())
    except (ImportError, OSError, RuntimeError):
        return False


def _attack(means: Means) -> tuple[set[str], str | None]:
    """Run the canary under these means, on a thread of its own: what it could do, or why it did not run."""
    found: list[tuple[set[str], str | None]] = []
    thread = threading.Thread(target=lambda: found.append(asyncio.run(_attacked(means))), name="sandbox-probe")
    thread.start()
    thread.join()
    return found[0] if found else (set(), "the probe failed")


async def _attacked(means: Means) -> tuple[set[str], str | None]:
    from workbench.sandbox import workfolder
    from workbench.sandbox.records import Limits, Request
    from workbench.sandbox.verdicts import judge
    from workbench.sandbox.watch import Watch
    from workbench.sandbox.zygotes import Zygote

    filtering = seccomp_filter() if means.seccomp else b""
    folder = None if means.outer != "none" else workfolder.make(None)
    with _bait() as facts:
        try:
            zygote = await Zygote.boot(means, "thin", {}, (), filtering, within_s=10)
        except WorkbenchError as error:
            return set(), str(error)
        try:
            limits = Limits(cpu_s=2, wall_s=5, memory_mb=256, processes=8)
            request = Request(
                (HERE / "canary.py").read_text(), stdin=json.dumps(facts).encode(), limits=limits, flavour="thin"
            )
            watch = Watch(zygote.child(), request, inherited=0, namespaces=means.outer != "none")
            result = judge(await watch.observe(None, str(folder) if folder else None), limits, "")
        finally:
            zygote.kill()
            if folder:
                workfolder.remove(folder)
    if result.verdict != "ok":
        return set(), f"{result.verdict}: {result.reason}"
    return set(json.loads(result.stdout)), None


@contextlib.contextmanager
def _bait() -> Iterator[dict[str, Any]]:
    """Things to attack, that everybody may use outside: a file, a folder, a listener, a process."""
    with tempfile.TemporaryDirectory(prefix="workbench-probe-") as name, socket.socket() as listener:
        folder = Path(name)
        folder.chmod(0o777)
        (folder / "secret").write_text("secret")
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        home = str(Path.home())
        yield {"secret": f"{name}/secret", "folder": name, "port": port, "pid": os.getpid(), "home": home}


def _cache_file() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "workbench" / "isolation.json"


def _cache_key(without: tuple[str, ...]) -> str:
    """Changes with the boot, the container, the rights, the interpreter, bubblewrap and this package."""
    parts = [repr(without), sys.executable, str(os.getuid()), " ".join(os.uname()[2:])]
    for path in ("/proc/sys/kernel/random/boot_id", "/proc/self/attr/current"):
        with contextlib.suppress(OSError):
            parts.append(Path(path).read_text())
    with contextlib.suppress(OSError):
        kept = ("CapEff", "Seccomp", "NoNewPrivs")
        parts += [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(kept)]
    for path in ("/", "/proc/self/ns/user", shutil.which("bwrap") or ""):
        with contextlib.suppress(OSError):
            status = os.stat(path)
            parts.append(f"{status.st_dev}:{status.st_ino}:{status.st_mtime_ns if path != '/' else 0}")
    parts += [path.read_text() for path in sorted(HERE.glob("*.py"))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
