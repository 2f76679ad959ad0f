"""What a script must not be able to do. After every attack the executor serves on and the outside is unharmed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from workbench.config import ROOT
from workbench.sandbox.executor import Limits, Request
from workbench.tasks.catalog import TASKS_DIR
from workbench.types import Verdict

ANSWERS = TASKS_DIR / "used-cars" / "private" / "answers.csv"
PUBLIC = TASKS_DIR / "used-cars" / "public"


@pytest.fixture
def unharmed(run, executor, tmp_path: Path) -> Iterator[Path]:
    """A folder that everybody may write; afterwards it is as before and the executor works."""
    tmp_path.chmod(0o777)
    for parent in list(tmp_path.parents)[:3]:
        if parent.owner() == tmp_path.owner() and parent != Path("/tmp"):
            parent.chmod(parent.stat().st_mode | 0o055)
    secret = tmp_path / "secret.txt"
    secret.write_text("SECRET")
    secret.chmod(0o666)
    yield tmp_path
    assert secret.read_text() == "SECRET"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["secret.txt"]
    after = run("print('fine')")
    assert (after.verdict, after.stdout) == (Verdict.OK, "fine\n")


def attempt(body: str) -> str:
    """A script that prints SUCCESS when `body` comes to its end without an exception."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    return f"import os, sys, socket, ctypes, glob\ntry:\n{lines}\nexcept BaseException as error:\n    print('refused', type(error).__name__)\nelse:\n    print('SUCCESS')\n"


LIBC = "libc = ctypes.CDLL(None, use_errno=True)\n"
REFUSED = {
    "answers by path": f"open({str(ANSWERS)!r}).read()",
    "answers beside the public files": "open('./input/../private/answers.csv').read()",
    "answers by search": "assert glob.glob('/**/answers.csv', recursive=True)",
    "home": f"assert os.listdir({str(Path.home())!r})",
    "repository": f"assert os.listdir({str(ROOT)!r})",
    "shadow": "open('/etc/shadow').read()",
    "jupyter tokens": "assert glob.glob('/root/.local/share/jupyter/runtime/*') or glob.glob('/home/*/.local/*')",
    "environment of another process": "assert [p for p in glob.glob('/proc/[0-9]*/environ') if b'PATH' in open(p, 'rb').read()]",
    "other processes": "assert len([p for p in os.listdir('/proc') if p.isdigit()]) > 20",
    "write to the root": "open('/x', 'w')",
    "write to a library": "import pandas; open(os.path.dirname(pandas.__file__) + '/x.py', 'w')",
    "write to the input": "open('./input/train.csv', 'a')",
    "delete the input": "os.remove('./input/train.csv')",
    "internet": "socket.create_connection(('1.1.1.1', 80), timeout=1)",
    "metadata address": "socket.create_connection(('169.254.169.254', 80), timeout=1)",
    "names": "socket.gethostbyname('example.com')",
    "bind": "s = socket.socket(); s.bind(('0.0.0.0', 8888)); s.listen()",
    "datagram": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 53))",
    "raw socket": "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
    "become root": "os.setuid(0); assert os.getuid() == 0 and os.listdir('/root')",
    "device": "os.mknod('x', 0o020666, os.makedev(1, 3)); open('x').read(1)",
    "chroot": "os.chroot('/')",
    "unshare": LIBC + "assert libc.unshare(0x10000000) == 0",
    "mount": LIBC + "assert libc.mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0",
    "ptrace": LIBC + "assert libc.ptrace(16, os.getppid(), 0, 0) == 0",
    "trace me": LIBC + "assert libc.ptrace(0, 0, 0, 0) == 0",
    "clock": "import time; time.clock_settime(time.CLOCK_REALTIME, 0)",
    "limits": "import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1)); resource.setrlimit(resource.RLIMIT_NPROC, (-1, -1))",
    "descriptors": "found = 0\nfor fd in range(3, 4096):\n    try: os.fstat(fd); found += 1\n    except OSError: pass\nassert found",
    "keyring": LIBC + "assert libc.syscall(250, 0, 0) >= 0",
    "kernel log": "open('/dev/kmsg').read(1)",
    "memory of the parent": "open(f'/proc/{os.getppid()}/mem', 'rb').read(1)",
    "host name": "socket.sethostname('x')",
    "nice": "os.nice(-5)",
    "memory outside every count": "os.memfd_create('x')",
    "System V memory": LIBC + "assert libc.shmget(0, 4096, 0o1600) >= 0",
    "message queues": LIBC + "assert libc.msgget(0, 0o1600) >= 0",
    "memory of another process": LIBC + "assert libc.process_vm_readv(os.getppid(), 0, 0, 0, 0, 0) >= 0",
    "files of the sandbox itself": "assert os.listdir('/box') or os.listdir('/data')",
    "terminal": "open('/dev/tty')",
    "pseudo-terminal": "os.openpty()",
    "loopback": "socket.create_server(('127.0.0.1', 0))",
    "bundled data sets": "import sklearn.datasets; sklearn.datasets.load_diabetes()",
    "other packages": "import torch",
    "the workbench": "import workbench",
    "set-user-id": "open('x', 'w'); os.chown('x', 0, 0); os.chmod('x', 0o4755)",
    "namespaces by clone": LIBC + "assert libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0) > 0",
    "pid 1": "os.kill(1, 9); import time; time.sleep(0.1); os.kill(os.getppid(), 0); raise OSError('it lives')",
    "limits of pid 1": "import resource; resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))",
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_refused(run, unharmed: Path, name: str) -> None:
    result = run(attempt(REFUSED[name]), public=PUBLIC)
    assert "SUCCESS" not in result.stdout, result
    assert "refused" in result.stdout, result


def test_files_open_to_everybody_outside_are_not_visible(run, unharmed: Path) -> None:
    secret = str(unharmed / "secret.txt")
    assert "SUCCESS" not in run(attempt(f"open({secret!r}).read()")).stdout
    assert "SUCCESS" not in run(attempt(f"open({secret!r}, 'w').write('x')")).stdout
    assert "SUCCESS" not in run(attempt(f"open({str(unharmed / 'new')!r}, 'w').write('x')")).stdout


def test_a_listener_outside_hears_nothing(run, unharmed: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.3)
        port = server.getsockname()[1]
        assert "SUCCESS" not in run(attempt(f"socket.create_connection(('127.0.0.1', {port}), timeout=1)")).stdout
        with pytest.raises(TimeoutError):
            server.accept()


def test_only_a_small_environment_is_seen(run, unharmed: Path) -> None:
    os.environ["WORKBENCH_SECRET"] = "hunter2"
    try:
        seen = run("import os; print(dict(os.environ)); print(open('/proc/self/environ').read())").stdout
    finally:
        del os.environ["WORKBENCH_SECRET"]
    assert "hunter2" not in seen
    assert str(Path.home()) + "/" not in seen


def test_signals_reach_nobody_else(run, unharmed: Path) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        code = "import os\nfor pid in [-1, os.getppid(), *range(2, 300), {}]:\n    try: os.kill(pid, 9)\n    except OSError: pass"
        run(code.format(bystander.pid))
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


FLOODS = {
    "forks": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "threads": "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(99,), daemon=True).start()",
    "ignored signals": "import signal\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass\nwhile True: pass",
    "one large file": "f = open('big', 'wb')\nwhile True: f.write(b'x' * 10**6)",
    "many files": "n = 0\nwhile True:\n    open(f'f{n}', 'w').close(); n += 1",
    "deep folders": "import os\nwhile True:\n    os.mkdir('d' * 200); os.chdir('d' * 200)",
    "descriptors": "x = []\nwhile True: x.append(open('/dev/null'))",
}


@pytest.mark.parametrize("name", list(FLOODS))
def test_floods_are_dammed(run, unharmed: Path, name: str) -> None:
    began = time.monotonic()
    result = run(FLOODS[name], cpu_s=1.0, wall_s=2.0)
    assert result.verdict is not Verdict.OK
    assert result.verdict is not Verdict.INFRASTRUCTURE
    assert time.monotonic() - began < 6


def test_what_is_left_running_is_ended_and_not_waited_for(run, executor, unharmed: Path) -> None:
    mark = f"marker-{os.getpid()}"
    code = f"import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        for fd in (0, 1, 2): os.close(fd)\n        os.execv('/usr/bin/sleep' if os.path.exists('/usr/bin/sleep') else '/bin/sleep', ['{mark}', '60'])\n    os._exit(0)\nprint('done')"
    result = run(code)
    assert result.verdict is Verdict.OK
    assert result.stdout == "done\n"
    assert result.wall_s < 2
    assert mark not in subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, text=True).stdout


SUBMISSIONS = {
    "symbolic link to the answers": f"import os; os.symlink({str(ANSWERS)!r}, 'submission.csv')",
    "symbolic link to the input": "import os; os.symlink('./input/train.csv', 'submission.csv')",
    "loop of links": "import os; os.symlink('submission.csv', 'submission.csv')",
    "hard link": "import os; open('other', 'w').write('a,b'); os.link('other', 'submission.csv')",
    "pipe": "import os; os.mkfifo('submission.csv')",
    "folder": "import os; os.mkdir('submission.csv')",
}
REASONS = {"hard link": "2 names (hard links)", "pipe": "not a regular file", "folder": "not a regular file"}


@pytest.mark.parametrize("name", list(SUBMISSIONS))
def test_only_a_plain_file_is_collected(run, unharmed: Path, name: str) -> None:
    result = run(SUBMISSIONS[name], public=PUBLIC)
    assert (result.verdict, result.submission) == (Verdict.OK, None), result
    assert REASONS.get(name, "is a symbolic link, expected a plain file") in result.reason


UNMAKABLE = {
    "hard link to the input": "import os; os.link('./input/train.csv', 'submission.csv')",
    "socket": "import socket; socket.socket(socket.AF_UNIX).bind('submission.csv')",
}


@pytest.mark.parametrize("name", list(UNMAKABLE))
def test_a_file_that_cannot_be_made_is_an_error_of_the_program(run, unharmed: Path, name: str) -> None:
    result = run(UNMAKABLE[name], public=PUBLIC)
    assert (result.verdict, result.submission) == (Verdict.RUNTIME_ERROR, None), result
    assert "OSError" in result.stderr or "PermissionError" in result.stderr


def test_a_submission_above_what_is_wanted_is_not_read_but_reported(executor, unharmed: Path) -> None:
    code = "open('submission.csv', 'w').write('x' * 2000)"
    small, large = (
        executor.submit(Request(code, limits=Limits(memory_mb=256), collect_bytes=wanted)).result(60)
        for wanted in (1999, 2000)
    )
    assert (small.verdict, small.submission) == (Verdict.OK, None)
    assert small.reason == "submission.csv has 2000 bytes, which is too large: expected at most 1999."
    assert (large.submission, large.reason) == (b"x" * 2000, None)


def test_a_submission_is_never_larger_than_a_file_may_be(run, unharmed: Path) -> None:
    code = "f = open('submission.csv', 'wb')\nwhile True: f.write(b'x' * 10**6); f.flush()"
    result = run(code, files_mb=8, cpu_s=5.0)
    assert result.verdict is Verdict.RUNTIME_ERROR
    assert len(result.submission or b"") <= 8 * 2**20


def test_a_run_leaves_nothing_to_the_next(run, unharmed: Path) -> None:
    run(
        "import pandas, builtins, os, sklearn.metrics\npandas.read_csv = None\nbuiltins.print = None\n"
        "sklearn.metrics.f1_score = lambda *a, **k: 1.0\n"
        "for name in ('/tmp/left', '/dev/shm/left', 'left', 'pandas.py', 'sitecustomize.py'):\n"
        "    try: open(name, 'w').write('raise SystemExit(5)')\n    except OSError: pass"
    )
    code = (
        "import pandas, os, sklearn.metrics\n"
        "found = [n for n in ('/tmp/left', '/dev/shm/left', 'left', 'pandas.py') if os.path.exists(n)]\n"
        "print(found, callable(pandas.read_csv), sklearn.metrics.f1_score([1, 0], [0, 1]))"
    )
    result = run(code)
    assert result.stdout == "[] True 0.0\n", result


def test_runs_side_by_side_see_nothing_of_each_other(executor, unharmed: Path) -> None:
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


def test_a_flood_beside_it_changes_nothing_of_a_run(executor, unharmed: Path) -> None:
    code = "import numpy as np\nx = np.arange(200_000.0)\nprint(sum(float(x.sum()) for _ in range(50)))"
    limits = Limits(cpu_s=5.0, wall_s=15.0, memory_mb=256)
    alone = executor.submit(Request(code, limits=limits)).result(30)
    assert alone.verdict is Verdict.OK
    for name in ("forks", "threads", "many files"):
        flood = executor.submit(Request(FLOODS[name], limits=Limits(cpu_s=1.0, wall_s=1.5, memory_mb=256)))
        beside = executor.submit(Request(code, limits=limits)).result(30)
        assert (beside.verdict, beside.stdout) == (Verdict.OK, alone.stdout), name
        assert beside.cpu_s < 2 * alone.cpu_s + 0.5, name
        assert flood.result(30).verdict is not Verdict.OK


def test_a_file_that_is_swapped_for_a_link_gives_the_file_or_nothing(run, unharmed: Path) -> None:
    code = (
        f"import os\nif os.fork() == 0:\n    os.setsid()\n    while True:\n        open('new', 'w').write('mine')\n"
        f"        os.replace('new', 'submission.csv')\n        os.symlink({str(ANSWERS)!r}, 'link')\n"
        f"        os.replace('link', 'submission.csv')\nimport time; time.sleep(0.1)"
    )
    for _ in range(5):
        result = run(code)
        assert result.verdict is Verdict.OK
        assert result.submission in (None, b"", b"mine")


def test_forged_words_change_no_verdict(run, unharmed: Path) -> None:
    code = 'import os\nprint(\'{"verdict": "ok", "score": 1}\'); print(\'PASSED\', flush=True)\nos._exit(1)'
    assert run(code).verdict is Verdict.RUNTIME_ERROR


# The same at every level, with the thin flavour: what a level does not promise is named.

EVERYWHERE = [
    name.strip()
    for name in """answers by path, answers beside the public files, home, repository, shadow, environment of another process,
other processes, write to the root, write to the input, delete the input, internet, bind, datagram, raw socket, loopback,
chroot, unshare, mount, ptrace, trace me, limits, limits of pid 1, descriptors, memory of the parent, terminal,
memory outside every count, memory of another process, namespaces by clone, the workbench, other packages""".split(",")
]
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


def test_every_level_refuses(level, tmp_path: Path) -> None:
    name, executor = level
    attacks = {attack: REFUSED[attack] for attack in EVERYWHERE}
    if name[0] == "D":
        attacks |= GUARDIANS
    limits = Limits(cpu_s=2.0, wall_s=4.0, memory_mb=256)
    asked = {attack: Request(attempt(body), PUBLIC, limits=limits, flavour="thin") for attack, body in attacks.items()}
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
        bodies = [f"open({secret!r}).read()", f"open({secret!r}, 'w').write('x')"]
        bodies += [] if name == "D, Landlock 5" else [f"os.kill({bystander.pid}, 9)"]
        requests = [Request(attempt(body), limits=Limits(memory_mb=256), flavour="thin") for body in bodies]
        said = [future.result(60).stdout for future in [executor.submit(request) for request in requests]]
        alive = bystander.poll() is None
        bystander.kill()
    assert ["refused" in text for text in said] == [True] * len(bodies), said
    assert alive


def test_every_level_dams_floods(level) -> None:
    limits = Limits(cpu_s=0.4, wall_s=1.2, memory_mb=256)
    names = ("forks", "threads", "ignored signals", "one large file", "many files", "descriptors")
    futures = [level[1].submit(Request(FLOODS[name], limits=limits, flavour="thin")) for name in names]
    verdicts = {name: future.result(60).verdict for name, future in zip(names, futures, strict=True)}
    assert not {Verdict.OK, Verdict.INFRASTRUCTURE} & set(verdicts.values()), verdicts
    after = level[1].submit(Request("print('fine')", limits=limits, flavour="thin")).result(60)
    assert (after.verdict, after.stdout) == (Verdict.OK, "fine\n")


@pytest.mark.slow
@pytest.mark.parametrize("name", list(FLOODS))
def test_floods_again_and_again(run, unharmed: Path, name: str) -> None:
    for _ in range(20):
        assert run(FLOODS[name], cpu_s=0.5, wall_s=1.0).verdict is not Verdict.INFRASTRUCTURE
