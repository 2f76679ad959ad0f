"""Each means of isolation is really taken away: what is left is found, said with its remedy, and holds what it promises."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from catalogue import home_bait, patience

from workbench.config import ROOT
from workbench.sandbox import isolation
from workbench.types import WorkbenchError

strong = pytest.mark.skipif(
    isolation.probe().level != "B", reason="needs bubblewrap, Landlock 6 and seccomp: see `workbench doctor`"
)
as_root = pytest.mark.skipif(
    os.getuid() != 0 or not shutil.which("setpriv") or not shutil.which("unshare"),
    reason="needs root, and setpriv and unshare of util-linux",
)

FORBID = """
import errno, os, sys
import pyseccomp as s
filters = s.SyscallFilter(s.ALLOW)
def forbid(code, name, *arguments):
    filters.add_rule(s.ERRNO(code), name, *arguments)
def flagged(bits):
    for name in ("clone", "unshare"):
        for bit in bits:
            forbid(errno.EPERM, name, s.Arg(0, s.MASKED_EQ, bit, bit))
    forbid(errno.ENOSYS, "clone3")
{rules}
filters.load()
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Becomes its arguments, which then run below a filter of system calls, as in a container."""
USER = "flagged([0x10000000])"
LANDLOCK = "for name in (444, 445, 446): forbid(errno.{}, name)"
SECCOMP = "forbid(errno.EINVAL, 'seccomp'); forbid(errno.EINVAL, 'prctl', s.Arg(0, s.EQ, 22))"
DOCKER = """
flagged([1 << 7, 1 << 17, *(1 << bit for bit in range(25, 31))])
for name in ("mount", "umount2", "pivot_root", "setns", "keyctl", "add_key", "bpf", "perf_event_open", "userfaultfd"):
    forbid(errno.EPERM, name)
"""
"""What Docker's default profile refuses to those without CAP_SYS_ADMIN."""
HELD = "chown dac_override fowner fsetid kill setgid setuid setpcap net_bind_service net_raw sys_chroot mknod audit_write setfcap"
"""Docker's default capabilities."""
CONTAINER = ("setpriv", "--bounding-set=-all," + ",".join(f"+{name}" for name in HELD.split()))


@dataclass(frozen=True)
class Case:
    """A machine that lacks something."""

    level: str
    remedy: str = ""
    rules: str = ""
    prefix: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


NO_BUBBLEWRAP = {"PATH": "/nowhere"}
CASES = {
    "no bubblewrap": Case("C", "`apt-get install bubblewrap`", environment=NO_BUBBLEWRAP),
    "no user namespaces": Case("D", "namespaces", USER),
    "no Landlock in the kernel": Case("C", "`landlock` is among the lsm=", LANDLOCK.format("ENOSYS")),
    "Landlock switched off": Case("C", "`landlock` is among the lsm=", LANDLOCK.format("EOPNOTSUPP")),
    "no seccomp": Case("E", "CONFIG_SECCOMP_FILTER", SECCOMP),
    "neither namespaces nor Landlock": Case(
        "E", "`landlock` is among the lsm=", USER + "\n" + LANDLOCK.format("ENOSYS")
    ),
    "Docker's default": Case("D", "install bubblewrap", DOCKER, CONTAINER, NO_BUBBLEWRAP),
    "Docker as the hint says": Case("B", "", "", CONTAINER),
    "a container without capabilities": Case("D", "Docker's own capabilities", "", ("setpriv", "--bounding-set=-all")),
}
FORBIDDEN_BY_LIMIT = (
    "unshare", "--user", "--map-root-user", "sh", "-c", 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$0" "$@"',
)  # fmt: skip
CASES["no user namespaces by sysctl"] = Case("D", "namespaces", "", FORBIDDEN_BY_LIMIT)


def _marked(name: str) -> Any:
    return pytest.param(name, marks=[as_root] if CASES[name].prefix else [])


def _deprived(case: Case, tmp_path: Path, *command: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """`command` on that machine, with a memory of levels of its own."""
    if case.rules:
        command = (sys.executable, "-c", FORBID.format(rules=case.rules), *command)
    prefix = [shutil.which(case.prefix[0]) or case.prefix[0], *case.prefix[1:]] if case.prefix else []
    return subprocess.run(
        [*prefix, *command],
        input=given,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), **case.environment},
    )


LOOK = """
import json, sys
from workbench.sandbox import isolation
from workbench.sandbox.executor import Executor, Limits, Request
from workbench.types import WorkbenchError
given = json.load(sys.stdin)
found = isolation.probe()
told = {"level": found.level, "hints": found.hints, "tried": found.tried, "missing": found.missing}
try:
    Executor(min_level="ABCD"["ABCDE".index(found.level) - 1]).start()
except WorkbenchError as error:
    told["refused"] = str(error)
limits = Limits(cpu_s=2, wall_s=5, memory_mb=256)
with Executor([], 2, unsafe=True, flavours=("thin",)) as executor:
    requests = {name: Request(code, limits=limits, flavour="thin") for name, code in given.items()}
    waiting = {name: executor.submit(request) for name, request in requests.items()}
    results = {name: future.result(60) for name, future in waiting.items()}
told["said"] = {name: result.stdout or f"{result.verdict}: {result.reason}" for name, result in results.items()}
print(json.dumps(told))
"""
LIBC = "libc = ctypes.CDLL(None, use_errno=True)\n"
ATTACKS = {
    "read a file of everybody": "open({secret!r}).read()",
    "write a file of everybody": "open({secret!r}, 'w')",
    "home": "assert [path for path in {home!r} if os.path.isfile(path) and open(path, 'rb').read(1)]",
    "repository": "open({readme!r}).read()",
    "environment of the trainer": "open('/proc/{pid}/environ').read()",
    "signal the trainer": "os.kill({pid}, 0)",
    "trace its parent": LIBC + "assert libc.ptrace(16, os.getppid(), 0, 0) == 0",
    "loopback": "socket.create_connection(('127.0.0.1', {port}), timeout=1)",
    "datagram": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {port}))",
    "new namespace": LIBC + "assert libc.unshare(0x10000000) == 0",
    "memory outside every count": "os.memfd_create('x')",
    "write a library": "open(os.path.dirname(os.__file__) + '/x.py', 'w')",
}

BAITED = ("read a file of everybody", "home", "repository")


def _attempt(body: str) -> str:
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    return (
        f"import ctypes, os, socket\ntry:\n{lines}\nexcept BaseException as error:\n"
        "    print('refused', type(error).__name__)\nelse:\n    print('SUCCESS')\n"
    )


@strong
@pytest.mark.parametrize("name", [_marked(name) for name in CASES])
def test_what_is_left_is_found_told_and_holds(name: str, tmp_path: Path) -> None:
    case, secret = CASES[name], tmp_path / "secret"
    secret.write_text("SECRET")
    secret.chmod(0o666)
    for folder in [tmp_path, *tmp_path.parents][:3]:
        if folder != Path("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o055)
    with socket.create_server(("127.0.0.1", 0)) as server, home_bait() as in_home:
        facts = {
            "secret": str(secret),
            "home": [str(in_home), *isolation._home()],
            "readme": str(ROOT / "README.md"),
            "pid": os.getpid(),
            "port": server.getsockname()[1],
        }
        codes = {attack: _attempt(body.format(**facts)) for attack, body in ATTACKS.items()}
        given = json.dumps(codes | {"plain": "print(6 * 7)"})
        done = _deprived(case, tmp_path, sys.executable, "-c", LOOK, given=given)
    if "max_user_namespaces" in done.stderr:
        pytest.skip("no user namespaces to begin with")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["level"] == case.level, told
    remedies = [text for text in (*told["tried"], *told["hints"]) if case.remedy in text]
    assert len(remedies) >= 1 if case.remedy else not told["hints"], told
    assert all(text.endswith(".") for text in (*told["tried"], *told["hints"])), told
    assert case.remedy in told["refused"]
    assert "\n" not in told["refused"]
    said = told["said"]
    assert said.pop("plain") == "42\n", told
    if case.level == "E":
        assert "Model code would run with your rights" in told["refused"]
        if (
            name == "neither namespaces nor Landlock"
        ):  # nothing hides files there: the attacks would find what they seek
            assert [said[attack] for attack in BAITED] == ["SUCCESS\n"] * len(BAITED)
        return
    expected = "is not offered yet" if case.level == "B" else f"Isolation level {case.level} is weaker than"
    assert expected in told["refused"]
    assert {attack: text for attack, text in said.items() if "refused" not in text} == {}
    assert secret.read_text() == "SECRET"


DOCTOR = ("Docker's default", "no seccomp", "no bubblewrap")


@strong
@pytest.mark.parametrize("name", [_marked(name) for name in DOCTOR])
def test_the_doctor_tells_it_too(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    done = _deprived(case, tmp_path, sys.executable, "-m", "workbench", "doctor", "--json")
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["isolation"]["level"] == case.level, told
    sentences = told["errors"] if case.level == "E" else told["warnings"]
    assert any(case.remedy in sentence for sentence in sentences), told
    assert told["ok"] is (case.level != "E")
    assert done.returncode == (case.level == "E")


@as_root
def test_a_container_is_told_the_flags_to_start_it_with(tmp_path: Path) -> None:
    """The mark of a container is put there, in mounts of its own."""
    script = 'mount -t tmpfs none /run && touch /run/.containerenv && exec "$0" "$@"'
    case = Case("D", "", USER, ("unshare", "--mount", "sh", "-c", script))
    code = "from workbench.sandbox import isolation; print(*isolation.probe().hints)"
    done = _deprived(case, tmp_path, sys.executable, "-c", code)
    assert "--security-opt seccomp=unconfined --security-opt apparmor=unconfined" in done.stdout, done


def test_where_apparmor_forbids_namespaces_the_profile_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "restricts").write_text("1\n")
    monkeypatch.setattr(isolation, "APPARMOR_RESTRICTS", str(tmp_path / "restricts"))
    monkeypatch.setattr(isolation.os.path, "exists", lambda path: False)
    hint = isolation._namespace_hint()
    assert "printf 'abi <abi/4.0>,\\nprofile bwrap /usr/bin/bwrap flags=(unconfined) { userns, }\\n'" in hint
    (tmp_path / "restricts").write_text("0\n")
    assert "`sysctl user.max_user_namespaces`" in isolation._namespace_hint()


PROBE = """
import time
from workbench.sandbox import isolation
if {again}: isolation._find = lambda *_: exit("probed again")
wall, cpu = time.monotonic(), time.process_time()
print(isolation.probe().level, time.monotonic() - wall, time.process_time() - cpu)
"""


@strong
def test_the_probe_takes_at_most_two_seconds_and_is_remembered(tmp_path: Path) -> None:
    for again in (False, True):
        done = _deprived(Case("B"), tmp_path, sys.executable, "-c", PROBE.format(again=again))
        assert done.returncode == 0, done.stderr
        level, wall, cpu = done.stdout.split()
        assert level == "B"
        if again:  # nothing is started, so that its own CPU time is all that it takes
            assert float(cpu) < 0.2
        else:
            assert float(wall) < patience(2.0)


def test_no_level_is_better_than_there_is() -> None:
    with pytest.raises(WorkbenchError, match="is not offered yet"):
        isolation.require("A", unsafe=True)
