"""What a script must not be able to do at any level; the attacks at the best one are a catalogue (test_attack_list.py)."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from catalogue import ANSWERS, PUBLIC, catalogue, home_bait

from workbench.config import ROOT
from workbench.sandbox.executor import Limits, Request
from workbench.types import Verdict


@pytest.fixture
def unharmed(tmp_path: Path) -> Iterator[Path]:
    """A folder that everybody may write; afterwards it is as before."""
    tmp_path.chmod(0o777)
    for parent in list(tmp_path.parents)[:3]:
        if parent.owner() == tmp_path.owner() and parent != Path("/tmp"):
            parent.chmod(parent.stat().st_mode | 0o055)
    secret = tmp_path / "secret.txt"
    secret.write_text("SECRET")
    secret.chmod(0o666)
    before = [(path.name, path.stat()) for path in (tmp_path, secret)]
    yield tmp_path
    assert secret.read_text() == "SECRET"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["secret.txt"]
    for (name, old), new in zip(before, (tmp_path.stat(), secret.stat()), strict=True):
        assert (old.st_mode, old.st_uid, old.st_mtime) == (new.st_mode, new.st_uid, new.st_mtime), name


def attempt(body: str) -> str:
    """A script that prints SUCCESS when `body` comes to its end without an exception."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    return f"import os, sys, socket, ctypes, glob\ntry:\n{lines}\nexcept BaseException as error:\n    print('refused', type(error).__name__)\nelse:\n    print('SUCCESS')\n"


LIBC = "libc = ctypes.CDLL(None, use_errno=True)\n"
REFUSED = {
    "answers by path": f"open({str(ANSWERS)!r}).read()",
    "answers beside the public files": "open('./input/../private/answers.csv').read()",
    "home": f"assert os.listdir({str(Path.home())!r})",
    "repository": f"assert os.listdir({str(ROOT)!r})",
    "address of another's socket": "try: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'x', '/no/such')\nexcept FileNotFoundError: pass",
    "other families of sockets": "try: socket.socketpair(socket.AF_INET6)\nexcept OSError as error:\n    if error.errno != 95: raise",
    "shadow": "open('/etc/shadow').read()",
    "environment of another process": "assert [p for p in glob.glob('/proc/[0-9]*/environ') if b'PATH' in open(p, 'rb').read()]",
    "other processes": "assert len([p for p in os.listdir('/proc') if p.isdigit()]) > 20",
    "write to the root": "open('/x', 'w')",
    "write to the input": "open('./input/train.csv', 'a')",
    "delete the input": "os.remove('./input/train.csv')",
    "internet": "socket.create_connection(('1.1.1.1', 80), timeout=1)",
    "bind": "s = socket.socket(); s.bind(('0.0.0.0', 8888)); s.listen()",
    "datagram": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 53))",
    "raw socket": "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
    "loopback": "socket.create_server(('127.0.0.1', 0))",
    "chroot": "os.chroot('/')",
    "unshare": LIBC + "assert libc.unshare(0x10000000) == 0",
    "mount": LIBC + "assert libc.mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0",
    "ptrace": LIBC + "assert libc.ptrace(16, os.getppid(), 0, 0) == 0",
    "trace me": LIBC + "assert libc.ptrace(0, 0, 0, 0) == 0",
    "limits": "import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1)); resource.setrlimit(resource.RLIMIT_NPROC, (-1, -1))",
    "limits of pid 1": "import resource; resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))",
    "descriptors": "found = 0\nfor fd in range(3, 4096):\n    try: os.fstat(fd); found += 1\n    except OSError: pass\nassert found",
    "memory of the parent": "open(f'/proc/{os.getppid()}/mem', 'rb').read(1)",
    "terminal": "open('/dev/tty')",
    "memory outside every count": "os.memfd_create('x')",
    "memory of another process": LIBC + "assert libc.process_vm_readv(os.getppid(), 0, 0, 0, 0, 0) >= 0",
    "namespaces by clone": LIBC + "assert libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0) > 0",
    "the workbench": "import workbench",
    "other packages": "import torch",
}
GUARDIANS = {
    "its init": "os.kill(os.getppid(), 0)",
    "the zygote": "os.kill(os.getpgid(os.getppid()), 0)",
    "their group": "os.killpg(os.getpgid(os.getppid()), 0)",
    "everybody": "os.kill(-1, 0)",
    "by descriptor": "os.pidfd_open(os.getppid())",
    "by thread": LIBC + "assert libc.tgkill(os.getppid(), os.getppid(), 0) == 0",
    "by the owner of a file": "import fcntl; fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, os.getppid())",
    "by the owner of a socket": "import fcntl, struct; fcntl.ioctl(socket.socketpair()[0], 0x8901, struct.pack('i', os.getppid()))",
}
"""Where there is no pid namespace, what keeps a script from ending those that watch over it. Signal 0 harms nobody."""
KILLS_ITS_OWN = (
    "import os, signal, subprocess\na = subprocess.Popen(['sleep', '60']); a.kill()\n"
    "b = subprocess.Popen(['sleep', '60'], start_new_session=True); os.killpg(b.pid, signal.SIGTERM)\n"
    "print(a.wait(), b.wait())"
)


def test_every_level_refuses(level) -> None:
    name, executor = level
    attacks = dict(REFUSED)
    if name[0] == "D":
        attacks |= GUARDIANS
    limits = Limits(cpu_s=2.0, wall_s=4.0, memory_mb=256)
    with home_bait() as in_home:  # so that there is something in the home to list
        attacks["file of the home"] = f"open({str(in_home)!r}).read()"
        asked = {
            attack: Request(attempt(body), PUBLIC, limits=limits, flavour="thin") for attack, body in attacks.items()
        }
        waiting = {attack: executor.submit(request) for attack, request in asked.items()}
        results = {attack: future.result(60) for attack, future in waiting.items()}
    assert {attack: result.stdout for attack, result in results.items() if "refused" not in result.stdout} == {}
    assert {attack for attack, result in results.items() if "SUCCESS" in result.stdout} == set()
    own = executor.submit(Request(KILLS_ITS_OWN, limits=limits, flavour="thin")).result(60)
    assert own.stdout == "-9 -15\n", own


def test_every_level_hides_and_signals_nobody_else(level, unharmed: Path) -> None:
    name, executor = level
    secret = str(unharmed / "secret.txt")
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as bystander:
        pid = bystander.pid
        bodies = [f"open({secret!r}).read()", f"open({secret!r}, 'w')", f"os.open({secret!r}, os.O_TRUNC)"]
        bodies += [f"os.truncate({secret!r}, 0)", f"os.sched_setaffinity({pid}, {{0}})", f"os.setpriority(0, {pid}, 9)"]
        bodies += [] if name == "D, Landlock 5" else [f"os.kill({pid}, 9)"]
        requests = [Request(attempt(body), limits=Limits(memory_mb=256), flavour="thin") for body in bodies]
        said = [future.result(60).stdout for future in [executor.submit(request) for request in requests]]
        alive, priority = bystander.poll() is None, os.getpriority(os.PRIO_PROCESS, pid)
        bystander.kill()
    assert ["refused" in text for text in said] == [True] * len(bodies), said
    assert alive
    assert priority == os.getpriority(os.PRIO_PROCESS, 0)


def test_no_level_lets_rights_owners_or_times_be_changed(level, unharmed: Path) -> None:
    """Whatever the script is told: `unharmed` looks."""
    code = (
        f"import os\nfor path in ({str(unharmed)!r}, {str(unharmed / 'secret.txt')!r}):\n"
        "    for change in (lambda: os.chmod(path, 0o700), lambda: os.chown(path, 1000, 1000), lambda: os.utime(path, (0, 0))):\n"
        "        try: change()\n        except OSError: pass\n"
        "import shutil; open('a', 'w').write('x'); shutil.copy2('a', 'b'); open('b', 'r+').truncate(0); print('copied')"
    )
    result = level[1].submit(Request(code, limits=Limits(memory_mb=256), flavour="thin")).result(60)
    assert result.stdout == "copied\n", result


FLOODS = "a01_fork_bomb a03_thread_bomb a06_ignored_signals b37_one_large_file b38_many_files b41_descriptors x17_socket_buffers"


def test_every_level_dams_floods(level) -> None:
    attacks = [attack for attack in catalogue() if attack.name in FLOODS.split()]
    limits = Limits(cpu_s=0.4, wall_s=1.2, memory_mb=256)
    futures = [level[1].submit(Request(attack.code, limits=limits, flavour="thin")) for attack in attacks]
    for attack, future in zip(attacks, futures, strict=True):
        result = future.result(60)
        assert result.verdict.value in [*attack.head["verdicts"].split(), "timeout", "runtime_error"], attack.name
    after = level[1].submit(Request("print('fine')", limits=limits, flavour="thin")).result(60)
    assert (after.verdict, after.stdout) == (Verdict.OK, "fine\n")


HOPS = """
import ctypes, os
ctypes.CDLL(None).prctl(15, b"hopper", 0, 0, 0)
print("begun", flush=True)
while True:
    if os.fork():
        os._exit(0)
"""


def names() -> list[str]:
    found = []
    for file in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            found.append(file.read_text(errors="replace").strip())
    return found


def test_every_level_ends_what_forks_and_ends_again_and_again(level) -> None:
    limits = Limits(cpu_s=1.0, wall_s=3.0, memory_mb=256)
    for _ in range(3):
        result = level[1].submit(Request(HOPS, limits=limits, flavour="thin")).result(60)
        assert (result.verdict, result.stdout) == (Verdict.OK, "begun\n")
        assert "hopper" not in names()


DISK = (
    "for n in range(10**6):\n    with open(f'f{n}', 'wb') as file: file.write(b'x' * 10**6)",
    "for n in range(10**6): open(f'f{n}', 'w').close()",
    "import os\nwhile True:\n    os.mkdir('d' * 200); os.chdir('d' * 200)",
)


def test_every_level_bounds_the_disk(level) -> None:
    name, executor = level
    limits = Limits(cpu_s=20, wall_s=30, memory_mb=256, files_mb=8)
    codes = DISK if name[0] == "D" else DISK[:1]  # the others: of the catalogue
    futures = [executor.submit(Request(code, limits=limits, flavour="thin")) for code in codes]
    for result in [future.result(60) for future in futures]:
        assert result.verdict is Verdict.RUNTIME_ERROR, result
        assert "No space left" in result.stderr or "Stopped above 16 MB of files" in str(result.reason), result


def test_a_submission_may_be_as_large_as_wanted(executor) -> None:
    code = "open('submission.csv', 'w').write('x' * 2000)"
    small, large = (
        executor.submit(Request(code, limits=Limits(memory_mb=256), collect_bytes=wanted)).result(60)
        for wanted in (1999, 2000)
    )
    assert (small.verdict, small.submission) == (Verdict.OK, None)
    assert small.reason == "submission.csv has 2000 bytes, which is too large: expected at most 1999."
    assert (large.submission, large.reason) == (b"x" * 2000, None)


def test_runs_side_by_side_see_nothing_of_each_other(executor) -> None:
    leave = (
        "import time\nfor name in ('/tmp/a', '/dev/shm/a', 'a'):\n    try: open(name, 'w').write('x')\n"
        "    except OSError: pass\ntime.sleep(1.2); print('left')"
    )
    look = (
        "import os, time\nseen = set()\nfor _ in range(40):\n    time.sleep(0.02)\n"
        "    seen |= {n for n in ('/tmp/a', '/dev/shm/a', 'a') if os.path.exists(n)}\nprint(sorted(seen))"
    )
    limits = Limits(cpu_s=2.0, wall_s=5.0, memory_mb=256)
    one, two = [executor.submit(Request(code, limits=limits)) for code in (leave, look)]
    assert (one.result(30).stdout, two.result(30).stdout) == ("left\n", "[]\n")
