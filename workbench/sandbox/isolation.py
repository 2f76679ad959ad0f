"""How well a run can be shut in on this machine: found out by attacking it, not by looking at versions.

| level | what it takes | what is weaker than the level above |
|---|---|---|
| A | B and a delegated cgroup v2 | (not offered yet: the best level found is B) |
| B | bubblewrap, user namespaces, Landlock 6, seccomp | memory over several processes is polled |
| C | namespaces and seccomp; Landlock older than 6 or bubblewrap missing | one barrier less around files and signals |
| D | Landlock and seccomp, no namespaces (most containers) | ended by a kill loop; signals below Landlock 6 |
| E | none of it | model code runs with your rights: only limits and clean-up are left |
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from workbench.sandbox import mounts, remembered
from workbench.sandbox.outer import HERE, Means, Tool
from workbench.sandbox.syscalls import seccomp_filter
from workbench.types import Verdict, WorkbenchError

log = logging.getLogger(__name__)

MEANS = ("bubblewrap", "namespaces", "landlock", "seccomp")
"""What `without` may name."""

BEST = "B"
"""The strongest level there is; A needs a memory limit by cgroup v2, which is not offered yet."""

BOOT_S = 10.0
"""A zygote that is not up by then leaves the probe without an answer."""

PROCESSES = 8
"""Limit of processes of the canary."""

APPARMOR_RESTRICTS = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
APPARMOR = (
    "AppArmor forbids user namespaces here: allow them to bubblewrap by a profile, `printf 'abi <abi/4.0>,\\nprofile "
    "bwrap /usr/bin/bwrap flags=(unconfined) { userns, }\\n' | sudo tee /etc/apparmor.d/bwrap && sudo apparmor_parser "
    "-r /etc/apparmor.d/bwrap` (`bwrap-userns-restrict` is not enough: it forbids the namespace of each run inside)."
)

_NAMES: dict[str, str] = {"bubblewrap": "bubblewrap", "namespaces": "our own namespaces", "none": "Landlock alone"}

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
    tried: tuple[str, ...] = ()
    """Stronger means that were tried and did not do, and why, one sentence each."""
    certain: bool = True
    """False when a probe of stronger means did not come to its end; then nothing is remembered."""


_known: dict[tuple[str, ...], Isolation] = {}
"""What this process has found."""


def probe(without: Sequence[str] = (), *, anew: bool = False) -> Isolation:
    """The best level that holds against the canary; remembered by this process, and where it is the best one in a file.

    without: means not to use although they are there, of `MEANS`. anew: believe no memory. Raises `WorkbenchError`
    where there is no Linux, and when the probe itself is broken.
    """
    if unknown := set(without) - set(MEANS):
        raise WorkbenchError(f"'{min(unknown)}' is no means of isolation: expected some of {', '.join(MEANS)}.")
    if sys.platform != "linux":
        raise WorkbenchError(
            f"The executor needs Linux, with unsafe_executor=true too, and this is {sys.platform}: "
            "run the workbench in Docker or a Linux VM, on Windows in WSL 2."
        )
    key = tuple(sorted(without))
    found = None if anew else _known.get(key) or _recall(key)
    if found is None:
        found = _find(key)
        remembered.keep(key, asdict(found) if found.level == BEST else None)
    if found.certain:
        _known[key] = found
    return found


def _recall(key: tuple[str, ...]) -> Isolation | None:
    with contextlib.suppress(KeyError, TypeError):
        if stored := remembered.recall(key):
            means = Means(**stored.pop("means"))
            lists = {name: tuple(stored[name]) for name in ("missing", "hints", "tried")}
            return Isolation(stored["level"], means=means, certain=True, **lists)
    return None


def require(min_level: str, *, unsafe: bool, without: Sequence[str] = ()) -> Isolation:
    """The level in use, said once in the log. Raises `WorkbenchError` when it is weaker than `min_level`.

    Level E needs `unsafe`, whatever `min_level` says; with `unsafe` it is accepted.
    """
    if min_level not in tuple("ABCDE"):
        raise WorkbenchError(f"min_level={min_level!r} is not accepted: expected A, B, C, D or E.")
    found = probe(without)
    if min_level == "A":
        raise WorkbenchError(
            f"Isolation level A (exact memory limits by memory.max of a cgroup v2) is not offered yet, B is the "
            f"strongest and this machine gives {found.level}: set min_level={min(found.level, 'D')}."
        )
    remedy = " ".join((*found.tried, *found.hints)) or "See `workbench doctor`."
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
    tone = logging.INFO if found.level in "AB" else logging.WARNING
    log.log(
        tone,
        "Scripts run at isolation level %s; not given: %s.%s",
        found.level,
        "; ".join(found.missing) or "nothing known",
        "" if found.certain else f" {found.hints[0]}",
    )


def filter_for(found: Isolation) -> bytes:
    return seccomp_filter(shared=found.means.outer == "none") if found.means.seccomp else b""


def _find(without: tuple[str, ...]) -> Isolation:
    from workbench.sandbox import jail

    landlock = 0 if "landlock" in without else jail.landlock_abi()
    seccomp = "seccomp" not in without and _has_libseccomp() and jail.seccomp_offered()
    outers: list[Tool] = []
    if "namespaces" not in without and jail.can_clone():
        outers += ["bubblewrap"] if _has_bubblewrap(without) else []
        outers += ["namespaces"]
    tried: list[str] = []
    certain = True
    for outer in (*outers, "none"):
        means = Means(outer, landlock, seccomp)
        level = _level(means)
        if level == "E":
            break
        seen = _attack(means)
        if seen.unfinished:
            seen = _attack(means)  # once more: the machine may have been busy
        broken = sorted(seen.breaches & _BREACHES[level])
        if not (seen.refused or seen.unfinished or broken):
            return _describe(means, level, seen.breaches, without, tried, certain)
        certain = certain and not seen.unfinished
        tried.append(f"{_NAMES[outer]}: {_why(seen, broken)}.")
        log.info("isolation level %s is not available with %s", level, tried[-1])
    return _describe(Means("none", landlock, seccomp), "E", frozenset({"signal_supervisor"}), without, tried, certain)


def _why(seen: Attacked, broken: Sequence[str]) -> str:
    if seen.refused:
        return f"not available here ({seen.refused.rstrip('.')})"
    if seen.unfinished:
        return f"unknown, the probe did not come to its end ({seen.unfinished.rstrip('.')})"
    return f"did not hold against {', '.join(broken)}"


def _level(means: Means) -> str:
    """The level that these means can give at best."""
    if means.outer != "none" and means.seccomp:
        return "B" if means.outer == "bubblewrap" and means.landlock >= 6 else "C"
    return "D" if means.outer == "none" and means.landlock and means.seccomp else "E"


def _has_bubblewrap(without: tuple[str, ...]) -> bool:
    return "bubblewrap" not in without and shutil.which("bwrap") is not None


def _describe(
    means: Means, level: str, breaches: frozenset[str], without: tuple[str, ...], tried: Sequence[str], certain: bool
) -> Isolation:
    missing, hints = [], []
    if level == "E":
        missing.append("protection of your files, your network and your processes")
    if means.outer == "none":
        missing.append("private folders, hidden process names, a count of processes for each run (namespaces)")
        if means.seccomp and certain:
            hints.append(_namespace_hint())
    elif means.outer == "namespaces":
        missing.append("the outer sandbox of bubblewrap; our own mounts stand in")
        if not _has_bubblewrap(without):
            hints.append("Install bubblewrap: `apt-get install bubblewrap` or `dnf install bubblewrap`.")
    if means.landlock < 6:
        missing.append(f"Landlock 6 (this kernel offers {means.landlock})")
        hints.append("Linux 6.12 or newer offers Landlock 6; check that `landlock` is among the lsm= of the kernel.")
    if "signal_supervisor" in breaches:
        missing.append("protection of your other processes, the trainer too, against signals")
    if "many_processes" in breaches:
        missing.append("a limit on the number of processes (this user is root outside)")
    if not means.seccomp:
        missing.append("the filter of system calls")
        hints.append(_seccomp_hint())
    if not certain:
        hints.insert(
            0, "The probe did not come to its end: run `workbench doctor` again when the machine is less busy."
        )
    missing.append("an exact memory limit over several processes (needs a cgroup v2 of our own)")
    return Isolation(level, tuple(missing), tuple(hints) if level != "B" else (), means, tuple(tried), certain)


def _namespace_hint() -> str:
    if os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"):
        return (
            "In a container, start it with `--security-opt seccomp=unconfined --security-opt apparmor=unconfined "
            "--security-opt systempaths=unconfined`, as a user other than root or with Docker's own capabilities, and "
            "install bubblewrap."
        )
    with contextlib.suppress(OSError):
        if Path(APPARMOR_RESTRICTS).read_text().strip() == "1":
            return APPARMOR
    return "Install bubblewrap and allow user namespaces (`sysctl user.max_user_namespaces`)."


def _seccomp_hint() -> str:
    from workbench.sandbox import jail

    if jail.seccomp_offered():
        return "Install libseccomp: `apt-get install libseccomp2` and `pip install pyseccomp`."
    return (
        "The kernel, or the container around us, refuses filters of system calls (seccomp): use a kernel with "
        "CONFIG_SECCOMP_FILTER, or a container that lets prctl(PR_SET_SECCOMP) through, as Docker's default does."
    )


def _has_libseccomp() -> bool:
    try:
        return bool(seccomp_filter())
    except (ImportError, OSError, RuntimeError):
        return False


@dataclass(frozen=True, slots=True)
class Attacked:
    """What the canary did under some means."""

    breaches: frozenset[str] = frozenset()
    """Names of what it could do."""
    refused: str | None = None
    """Why the machine does not give these means."""
    unfinished: str | None = None
    """Why the canary did not come to its end: then nothing is known."""


def _attack(means: Means) -> Attacked:
    """Run the canary under these means, on a thread of its own. Raises `WorkbenchError` for a defect of the probe."""
    found: list[Attacked | Exception] = []

    def work() -> None:
        try:
            found.append(asyncio.run(_attacked(means)))
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=work, name="sandbox-probe")
    thread.start()
    thread.join()
    if isinstance(found[0], Attacked):
        return found[0]
    what = f"{type(found[0]).__name__}: {found[0]}"
    raise WorkbenchError(
        f"The probe of the sandbox itself failed with {_NAMES[means.outer]} ({what}), so the isolation level is "
        "unknown: this is a defect of the workbench, please report it with the output of `workbench doctor --json`."
    ) from found[0]


async def _attacked(means: Means) -> Attacked:
    from workbench.sandbox import workfolder
    from workbench.sandbox.records import Limits, Request
    from workbench.sandbox.verdicts import NOT_SET_UP, judge
    from workbench.sandbox.watch import Watch
    from workbench.sandbox.zygotes import NotStarted, Zygote

    filtering = seccomp_filter(shared=means.outer == "none") if means.seccomp else b""
    with _bait() as facts, contextlib.ExitStack() as clean:
        started = time.monotonic()
        try:
            zygote = await Zygote.boot(means, "thin", {}, (), filtering, within_s=BOOT_S)
        except NotStarted as error:
            late = time.monotonic() - started > BOOT_S
            return Attacked(unfinished=error.what) if late else Attacked(refused=error.what)
        clean.callback(zygote.kill)
        folder = None if means.outer != "none" else workfolder.make(None)
        if folder is not None:
            clean.callback(workfolder.remove, folder)
        limits = Limits(cpu_s=2, wall_s=5, memory_mb=256, processes=PROCESSES)
        code = (HERE / "canary.py").read_text()
        request = Request(code, stdin=json.dumps(facts).encode(), limits=limits, flavour="thin")
        watch = Watch(zygote.child(), request, inherited=0, namespaces=means.outer != "none")
        result = judge(await watch.observe(None, str(folder) if folder else None), limits, "")
    if result.verdict is Verdict.INFRASTRUCTURE:
        reason = result.reason or ""
        return Attacked(refused=reason) if reason.startswith(NOT_SET_UP) else Attacked(unfinished=reason)
    if result.verdict is not Verdict.OK:
        return Attacked(unfinished=f"{result.verdict.value}: {result.reason}")
    return Attacked(frozenset(json.loads(result.stdout)))


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
        yield {
            "secret": f"{name}/secret",
            "folder": name,
            "port": port,
            "pid": os.getpid(),
            "home": _home(),
            "processes": PROCESSES,
        }


def _home() -> list[str]:
    """Some files and folders of the user's home, without what the sandbox itself provides at these places."""
    home = str(Path.home())
    provided = (*mounts.view({}).mounts, mounts.Mount("bind", "/proc"))
    try:
        names = sorted(os.listdir(home))
    except OSError:
        return []
    paths = [f"{home.rstrip('/')}/{name}" for name in names]
    return [path for path in paths if not any(_provided(p, provided) for p in {path, os.path.realpath(path)})][:40]


def _provided(path: str, plan: Sequence[mounts.Mount]) -> bool:
    """Whether a run finds something at `path`: a mount there or below, or a place in one that brings files."""
    around = [mount for mount in plan if mounts.below(path, [mount.path])]
    nearest = max(around, key=lambda mount: len(mount.path), default=None)
    shown = nearest is not None and nearest.kind != "tmpfs"
    return shown or any(mounts.below(mount.path, [path]) for mount in plan)
