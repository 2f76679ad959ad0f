"""Kernel calls that shut one run in. Runs inside the sandbox: standard library only, no import of the workbench.

Every function raises `OSError` when the kernel refuses; the caller then ends the run before any of its code runs.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import resource
import signal
import struct
from collections.abc import Sequence

CLONE_NEWNS = 0x0002_0000
CLONE_NEWUTS = 0x0400_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18

_SYS_CLONE = {"x86_64": 56, "aarch64": 220, "riscv64": 220}
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_CAPBSET_DROP = 1, 4, 22, 24
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 36, 38, 47
_SYS_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE = 442, -100, 0x8000
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446

# PyDLL keeps the GIL during the call: the child of a raw clone() must never have to take it back from another thread.
_libc = ctypes.PyDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
_libc.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]
_libc.umount2.argtypes = [ctypes.c_char_p, ctypes.c_int]
_libc.unshare.argtypes = [ctypes.c_int]


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return int(result)


def prctl(option: int, value: int = 0, third: int = 0, fourth: int = 0) -> None:
    _check(_libc.prctl(option, value, third, fourth, 0), f"prctl({option})")


def die_with_parent() -> None:
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def set_dumpable(value: bool) -> None:
    """Not dumpable: no process of the same user may trace this one or open its memory."""
    prctl(_PR_SET_DUMPABLE, int(value))


def adopt_orphans() -> None:
    prctl(_PR_SET_CHILD_SUBREAPER, 1)


def can_clone() -> bool:
    return platform.machine() in _SYS_CLONE


def clone(flags: int) -> int:
    """`fork()` into new namespaces: 0 in the child, its pid in the parent. The caller must be single-threaded."""
    python = ctypes.pythonapi
    python.PyOS_BeforeFork()
    number = _SYS_CLONE[platform.machine()]
    pid = _libc.syscall(*map(ctypes.c_long, (number, flags | signal.SIGCHLD, 0, 0, 0, 0)))
    if pid == 0:
        python.PyOS_AfterFork_Child()
        return 0
    code = ctypes.get_errno()
    python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(code, f"clone: {os.strerror(code)}")
    return int(pid)


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def map_ids(outer_uid: int, outer_gid: int, uid: int, gid: int) -> None:
    """Give this process, alone in a new user namespace, one user and one group."""
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {outer_uid} 1"),
        ("gid_map", f"{gid} {outer_gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    arguments = (source.encode(), target.encode(), kind.encode() or None, flags, options.encode() or None)
    _check(_libc.mount(*arguments), f"mount {kind or 'bind'} on {target}")


def read_only(target: str) -> None:
    """Make a bind read-only with all mounts below it; before Linux 5.12 the bind alone.

    Flags that this namespace may not clear are kept.
    """
    attributes = struct.pack("<QQQQ", MS_RDONLY | MS_NOSUID, 0, 0, 0)  # these two have the same numbers there
    call = (ctypes.c_long(_SYS_MOUNT_SETATTR), ctypes.c_int(_AT_FDCWD), target.encode(), ctypes.c_uint(_AT_RECURSIVE))
    result = _libc.syscall(*call, attributes, ctypes.c_size_t(len(attributes)))
    if result == 0 or ctypes.get_errno() != errno.ENOSYS:
        _check(result, f"mount_setattr on {target}")
        return
    flags = os.statvfs(target).f_flag & (MS_NOSUID | MS_NODEV | 8 | 1024)  # 8: noexec; 1024: noatime
    mount("none", target, flags=MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | flags)


def pivot_root(new: str, old: str) -> None:
    _check(_libc.pivot_root(new.encode(), old.encode()), "pivot_root")


def unmount(target: str, flags: int = 0) -> None:
    _check(_libc.umount2(target.encode(), flags), f"umount {target}")


def tmpfs(target: str, *, megabytes: int, mode: str, inodes: int = 8192, flags: int = 0) -> None:
    options = f"size={megabytes}m,nr_inodes={inodes},mode={mode}"
    mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV | flags, options)


def give_way(nice: int, proc: int) -> None:
    """Let others have the processor before this process and its children: a trainer's threads wait for each other.

    Where the kernel weighs sessions instead of processes (autogroups), that of this process is lowered, which the
    kernel refuses when many ask at once. `proc`: descriptor of a real /proc.
    """
    os.nice(nice)
    with contextlib.suppress(OSError):
        file = os.open("self/autogroup", os.O_WRONLY, dir_fd=proc)
        try:
            os.write(file, str(nice).encode())
        finally:
            os.close(file)


def drop_capabilities() -> None:
    """Empty every capability set, for good."""
    _libc.prctl(_PR_CAP_AMBIENT, 4, 0, 0, 0)
    for capability in range(64):
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            break  # beyond the last one, or not ours to drop: the sets below are emptied all the same
    header = struct.pack("<Ii", 0x2008_0522, 0)
    _check(_libc.capset(header, bytes(24)), "capset")


def no_new_privileges() -> None:
    prctl(_PR_SET_NO_NEW_PRIVS, 1)


def load_seccomp(program: bytes) -> None:
    """Load a compiled BPF filter (8 bytes per instruction); it holds for every process started from here on."""
    buffer = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("<HxxxxxxQ", len(program) // 8, ctypes.addressof(buffer))
    holder = ctypes.create_string_buffer(head, len(head))
    prctl(_PR_SET_SECCOMP, 2, ctypes.addressof(holder))


def seccomp_offered() -> bool:
    """Whether the kernel takes filters: given none, it then complains of the address and not of the request."""
    return _libc.prctl(_PR_SET_SECCOMP, 2, 0, 0, 0) < 0 and ctypes.get_errno() == errno.EFAULT


# Numbers of kill, tkill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo, pidfd_open; then of fcntl, ioctl.
_SIGNALLING = {"x86_64": ((62, 200, 234, 129, 297, 434), (72, 16))}
_SIGNALLING |= dict.fromkeys(("aarch64", "riscv64"), ((129, 130, 131, 138, 240, 434), (25, 29)))
_SET_OWNER = (8, 15, 0x8901, 0x8902)  # F_SETOWN, F_SETOWN_EX, FIOSETOWN, SIOCSPGRP: signals by way of a file's events


def forbid_signals(targets: Sequence[int]) -> None:
    """Refuse signals to these arguments of kill(), and to the owner of a file; a filter beside that of `load_seccomp`.

    Where neither a pid namespace nor Landlock 6 does it. On another architecture than the known ones: nothing.
    """
    if platform.machine() not in _SIGNALLING:
        return
    direct, by_file = _SIGNALLING[platform.machine()]
    # Blocks: load a word of the call (its number, its first or second argument), jump on equality, else allow.
    blocks = {
        "number": (0, [*((number, "targets") for number in direct), *((number, "owners") for number in by_file)]),
        "targets": (16, [(target % 2**32, "refuse") for target in targets]),
        "owners": (24, [(word, "refuse") for word in _SET_OWNER]),
    }
    starts, at = dict[str, int](), 0
    for name, (_, tests) in blocks.items():
        starts[name], at = at, at + len(tests) + 2
    starts["refuse"] = at
    program = []
    for offset, tests in blocks.values():
        program.append((0x20, 0, offset))
        program += [(0x15, starts[goal] - at - 1, value) for at, (value, goal) in enumerate(tests, len(program))]
        program.append((0x06, 0, 0x7FFF_0000))
    program.append((0x06, 0, 0x0005_0000 | errno.EPERM))
    load_seccomp(b"".join(struct.pack("<HBBI", code, jump, 0, value) for code, jump, value in program))


def landlock_abi() -> int:
    """Version of Landlock that the kernel offers; 0 when it offers none."""
    return max(0, int(_libc.syscall(*map(ctypes.c_long, (_LANDLOCK_CREATE, 0, 0, 1)))))


_EXECUTE, _WRITE, _READ, _LIST, _TRUNCATE, _IOCTL = 1, 2, 4, 8, 1 << 14, 1 << 15
_MAKE_DEVICE = 1 << 6 | 1 << 11


class Landlock:
    """A ruleset: nothing below any path is allowed but what is added. Source: kernel, userspace-api/landlock."""

    def __init__(self, abi: int) -> None:
        self._files = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(abi, 16)) - 1
        attributes = struct.pack("<QQQ", self._files, 3 if abi >= 4 else 0, 3 if abi >= 6 else 0)
        size = 24 if abi >= 6 else 16 if abi >= 4 else 8
        call = (_LANDLOCK_CREATE, attributes[:size], size, 0)
        self._fd = _check(
            _libc.syscall(ctypes.c_long(call[0]), call[1], ctypes.c_size_t(size), ctypes.c_long(0)), "landlock"
        )

    def read(self, paths: Sequence[str]) -> None:
        self._allow(paths, _EXECUTE | _READ | _LIST)

    def list(self, paths: Sequence[str]) -> None:
        self._allow(paths, _LIST)

    def write(self, paths: Sequence[str]) -> None:
        self._allow(paths, ~_MAKE_DEVICE)

    def _allow(self, paths: Sequence[str], rights: int) -> None:
        for path in paths:
            try:
                fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue  # what is not there needs no permission
            allowed = rights & self._files
            if not os.path.isdir(path):
                allowed &= _EXECUTE | _WRITE | _READ | _TRUNCATE | _IOCTL
            rule = struct.pack("<Qi", allowed, fd)
            arguments = (ctypes.c_long(self._fd), ctypes.c_long(1), rule, ctypes.c_long(0))
            result = _libc.syscall(ctypes.c_long(_LANDLOCK_ADD), *arguments)
            os.close(fd)
            _check(result, f"landlock rule for {path}")

    def enforce(self) -> None:
        _check(_libc.syscall(*map(ctypes.c_long, (_LANDLOCK_RESTRICT, self._fd, 0))), "landlock_restrict_self")
        os.close(self._fd)


def set_limits(limits: dict[str, float], *, data: int, address_space: int, tasks: int) -> None:
    """Per-process limits. `data`, `address_space`: bytes the preloaded interpreter takes; `tasks`: already running."""
    memory = int(limits["memory_mb"] * 2**20)
    cpu = int(limits["cpu_s"]) + 3  # the supervisor stops at the exact limit; this holds if it cannot
    files = int(limits["files_mb"] * 2**20)
    stack = min(resource.getrlimit(resource.RLIMIT_STACK)[1] % 2**63, max(memory, 8 * 2**20))
    values = {
        resource.RLIMIT_CORE: (0, 0),
        resource.RLIMIT_CPU: (cpu, cpu + 1),
        resource.RLIMIT_FSIZE: (files, files),
        resource.RLIMIT_NOFILE: (256, 256),
        resource.RLIMIT_NPROC: (tasks + int(limits["processes"]),) * 2,
        resource.RLIMIT_DATA: (data + memory,) * 2,
        # Threads and shared maps reserve more than they touch; what is touched is summed from outside.
        resource.RLIMIT_AS: (address_space + 2 * memory + 512 * 2**20,) * 2,
        resource.RLIMIT_STACK: (min(8 * 2**20, stack), stack),
        resource.RLIMIT_MEMLOCK: (0, 0),
        resource.RLIMIT_MSGQUEUE: (0, 0),
        resource.RLIMIT_NICE: (0, 0),
        resource.RLIMIT_RTPRIO: (0, 0),
        resource.RLIMIT_SIGPENDING: (256, 256),
    }
    for name, (soft, hard) in values.items():
        ceiling = resource.getrlimit(name)[1]
        if ceiling != resource.RLIM_INFINITY:
            soft, hard = min(soft, ceiling), min(hard, ceiling)
        resource.setrlimit(name, (soft, hard))
