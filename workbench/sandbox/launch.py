"""The outer sandbox where bubblewrap is missing but namespaces can be made: the same mounts, by our own few calls.

Started as a script: `launch.py PLAN.json-as-text COMMAND…`. Standard library only. Makes the namespaces, builds a root
folder from the plan, enters it, drops the old one and becomes COMMAND as pid 1.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import jail

_MNT_DETACH = 2


def main() -> None:
    plan: dict[str, Any] = json.loads(sys.argv[1])
    jail.die_with_parent()
    flags = jail.CLONE_NEWNS | jail.CLONE_NEWPID | jail.CLONE_NEWNET | jail.CLONE_NEWIPC | jail.CLONE_NEWUTS
    uid, gid = os.getuid(), os.getgid()
    inside: int | None = plan["inside"]
    jail.unshare(flags if inside is None else flags | jail.CLONE_NEWUSER)
    if inside is not None:
        jail.map_ids(uid, gid, inside, inside)
    jail.mount("none", "/", flags=jail.MS_REC | jail.MS_PRIVATE)
    pid = os.fork()
    if pid == 0:
        jail.die_with_parent()
        build(plan)
        os.chdir(plan["job"])
        os.execv(sys.argv[2], sys.argv[2:])
    _, status = os.waitpid(pid, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def build(plan: dict[str, Any]) -> None:
    """Make the new root in a tmpfs and enter it; the old one stays reachable at /old until everything is bound."""
    jail.tmpfs("/tmp", megabytes=16, mode="0755")
    os.mkdir("/tmp/old")
    os.mkdir("/tmp/new")
    jail.pivot_root("/tmp", "/tmp/old")
    os.chdir("/")
    jail.tmpfs("/new", megabytes=16, mode="0755")
    for path in plan["parents"]:
        os.makedirs("/new" + path, mode=0o755, exist_ok=True)
    for kind, path, source in plan["mounts"]:
        _place(kind, "/new" + path, source)
    os.makedirs("/new/proc", exist_ok=True)
    try:
        jail.mount("proc", "/new/proc", "proc", jail.MS_NOSUID | jail.MS_NODEV)
    except OSError:  # parts of /proc are masked here (a container): the old one serves, runs get none of it
        jail.mount("/old/proc", "/new/proc", flags=jail.MS_BIND | jail.MS_REC)
    for path in [path for kind, path, _ in plan["mounts"] if kind == "tmpfs"] + ["/"]:
        jail.mount(
            "none",
            "/new" + path,
            flags=jail.MS_REMOUNT | jail.MS_BIND | jail.MS_RDONLY | jail.MS_NOSUID | jail.MS_NODEV,
        )
    os.chdir("/new")
    jail.pivot_root(".", ".")
    jail.unmount(".", _MNT_DETACH)
    os.chdir("/")


def _place(kind: str, target: str, source: str) -> None:
    if kind == "symlink":
        os.symlink(source, target)
    elif kind == "tmpfs":
        os.makedirs(target, exist_ok=True)
        jail.tmpfs(target, megabytes=1, mode="0755")
    else:
        origin = "/old" + source
        if os.path.isdir(origin):
            os.makedirs(target, exist_ok=True)
        elif not os.path.lexists(target):
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
        jail.mount(origin, target, flags=jail.MS_BIND | jail.MS_REC)
        if kind == "bind":
            jail.read_only(target)


if __name__ == "__main__":
    main()
