"""The catalogue of attacks: reads `attacks/`, offers what they aim at, and says what of the outside they changed.

One program per attack. The comments at its head say what it does and what must come of it:

| key | meaning |
|---|---|
| Attack | what it does |
| Verdicts | those allowed, divided by spaces |
| Limits | of `Limits`, over those of `LIMITS` |
| Prints, Errors, Reason | what is found in stdout, stderr, the reason (regular expressions, `^` and `$` at lines) |
| Never prints | what is not; where it is not given: SUCCESS |
| Submission | the whole text collected (a regular expression), `<none>` for none |
| Signal | that ends it |
| Within | most seconds of wall time on an idle machine; where it is not given: the limit and one second |
| Stdin, Collect | bytes of input instead of `Bait.facts`; bytes of the submission that are wanted |
| Source | a Python expression of the program's bytes, for what no file of text can be |
| Cheap | it ends by itself at once: repeated hundreds of times |
| Flavour, Machine | the zygote it needs; the processor that its numbers of system calls are of |

Letters are the kinds: a processes, time and signals; b memory, output, disk; c reading, writing, escaping; d what is left to
a grader; x whatever else.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.config import ROOT
from workbench.sandbox import usage
from workbench.sandbox.executor import Executor, Limits, Request, Result
from workbench.tasks.catalog import TASKS_DIR

FOLDER = Path(__file__).parent / "attacks"
PUBLIC = TASKS_DIR / "used-cars" / "public"
ANSWERS = TASKS_DIR / "used-cars" / "private" / "answers.csv"
LIMITS = {"cpu_s": 2.0, "wall_s": 6.0, "memory_mb": 256}
SECRET = "the-word-that-nobody-may-read"
_KEYS = """attack verdicts limits prints errors reason never_prints submission signal within stdin collect source cheap
flavour machine""".split()


@dataclass(frozen=True)
class Attack:
    """One program and what must come of it."""

    name: str
    code: bytes
    head: dict[str, str]

    @property
    def cheap(self) -> bool:
        return "cheap" in self.head

    @property
    def flavour(self) -> Any:
        return self.head.get("flavour", "thin")

    @property
    def limits(self) -> Limits:
        given = (word.split("=") for word in self.head.get("limits", "").split())
        return Limits(**(LIMITS | {name: json.loads(value) for name, value in given}))  # type: ignore[arg-type]

    def request(self, bait: Bait) -> Request:
        stdin = b"x" * int(self.head["stdin"]) if "stdin" in self.head else json.dumps(bait.facts).encode()
        wanted = int(self.head["collect"]) if "collect" in self.head else None
        return Request(self.code, PUBLIC, stdin, limits=self.limits, collect_bytes=wanted, flavour=self.flavour)

    def faults(self, result: Result, secrets: Sequence[str]) -> list[str]:
        """What is not as it must be, one sentence each."""
        head, submission = self.head, "<none>" if result.submission is None else result.submission.decode("latin-1")
        found = [] if result.verdict.value in head["verdicts"].split() else [f"verdict {result.verdict.value}"]
        for key, text in (("prints", result.stdout), ("errors", result.stderr), ("reason", result.reason or "")):
            if key in head and not re.search(head[key], text, re.MULTILINE):
                found.append(f"{key} {text[:300]!r}")
        if re.search(head.get("never_prints", "SUCCESS"), result.stdout):
            found.append(f"prints {result.stdout[:2000]!r}")
        if "submission" in head and not re.fullmatch(head["submission"], submission):
            found.append(f"submission {submission[:100]!r}")
        if "signal" in head and result.signal != int(head["signal"]):
            found.append(f"signal {result.signal}")
        limit = self.limits.wall_s
        if result.wall_s > (patience(float(head["within"])) if "within" in head else limit + patience(1)):
            found.append(f"took {result.wall_s} s")
        left = "\n".join((result.stdout, result.stderr, submission))
        found += [f"told the secret {secret!r}" for secret in secrets if secret in left]
        return [f"{one}; {result.reason}; {result.stderr[-300:]!r}" for one in found]


def patience(seconds: float) -> float:
    """`seconds` on an idle machine; as much longer, tenfold at most, as more processes want to run than can.

    What is promised is promised of an idle machine. On a busy one every process of ours waits for its turn, so a bound
    in seconds would measure the others. Ask anew at each look: the load is a mean of the last minute, and lags behind.
    """
    return seconds * min(10.0, max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0))))


def catalogue() -> list[Attack]:
    return [_read(path) for path in sorted(FOLDER.glob("*.py"))]


def _read(path: Path) -> Attack:
    text, head = path.read_text(), dict[str, str]()
    for line in text.splitlines():
        if not (match := re.fullmatch(r"# ([A-Z][a-z ]+): (.+)", line)):
            break
        head[match[1].lower().replace(" ", "_")] = match[2]
    if unknown := set(head) - set(_KEYS):
        raise ValueError(f"{path.name}: {unknown} is not known")
    code = eval(head["source"]) if "source" in head else text.encode()
    return Attack(path.stem, code, head)


@dataclass
class Bait:
    """What attacks aim at, and would reach without a sandbox: all of it is open to every user."""

    folder: Path
    facts: dict[str, Any]
    listener: socket.socket
    bystander: subprocess.Popen[bytes]
    secrets: list[str] = field(default_factory=list)

    def faults(self) -> list[str]:
        """What has come to harm."""
        found = [] if self.bystander.poll() is None else ["a process outside has ended"]
        if sorted(os.listdir(self.folder)) != ["secret.txt"] or (self.folder / "secret.txt").read_text() != SECRET:
            found.append(f"the folder outside has {os.listdir(self.folder)}")
        pid = self.bystander.pid
        if os.getpriority(os.PRIO_PROCESS, pid) != os.getpriority(os.PRIO_PROCESS, 0):
            found.append("a process outside has another priority")
        if os.sched_getaffinity(pid) != os.sched_getaffinity(0):
            found.append("a process outside has other processors")
        try:
            self.listener.accept()[0].close()
        except BlockingIOError:
            return found
        return [*found, "a port outside was reached"]


@contextmanager
def bait() -> Iterator[Bait]:
    with tempfile.TemporaryDirectory() as name, socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        folder = Path(name)
        folder.chmod(0o777)
        (folder / "secret.txt").write_text(SECRET)
        (folder / "secret.txt").chmod(0o666)
        os.environ["WORKBENCH_SECRET"] = SECRET
        with subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(9999)"]) as bystander:
            facts = {"answers": str(ANSWERS), "home": str(Path.home()), "repository": str(ROOT), "pid": bystander.pid}
            facts |= {"port": listener.getsockname()[1], "folder": name, "secret": f"{name}/secret.txt"}
            try:
                with home_bait() as in_home:
                    facts["in_home"] = str(in_home)
                    yield Bait(folder, facts, listener, bystander, [SECRET, *_lines(ANSWERS), *_home()])
            finally:
                bystander.kill()
                del os.environ["WORKBENCH_SECRET"]


@contextmanager
def home_bait() -> Iterator[Path]:
    """A file in the user's home, whose words no run may tell; one that is there already where none can be put."""
    home = Path.home()
    if os.access(home, os.W_OK):
        with tempfile.NamedTemporaryFile("w", prefix=".attack-", dir=home) as file:
            file.write(SECRET)
            file.flush()
            os.chmod(file.name, 0o644)
            yield Path(file.name)
    else:
        there = [path for path in sorted(home.iterdir()) if path.is_file() and os.access(path, os.R_OK)]
        assert there, f"no file can be put into {home}, and none is there: give HOME a folder that may be written"
        yield there[0]


def _lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines()[:200]


def _home() -> list[str]:
    """Long lines of the small files of the home."""
    try:
        files = [path for path in Path.home().iterdir() if path.is_file() and path.stat().st_size < 20_000]
        return [line for path in files for line in _lines(path) if len(line) > 24]
    except OSError:
        return []


def outside(executor: Executor) -> dict[str, Any]:
    """What a run must leave as it was. Zygotes by flavour."""
    zygotes = {seat: zygote.pid for seat, zygote in executor._zygotes.items()}
    temporary = (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm", "/", str(ROOT), os.getcwd())
    ours = re.compile(rf"attack|workbench-run-\d+-{os.getpid()}-|core\b")
    return {
        "processes": len(usage.tree(os.getpid())) - 1,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "descriptors of zygotes": {seat: len(os.listdir(f"/proc/{pid}/fd")) for seat, pid in zygotes.items()},
        "threads of zygotes": {seat: len(os.listdir(f"/proc/{pid}/task")) for seat, pid in zygotes.items()},
        "mounts": [_count(f"/proc/{pid}/mountinfo") for pid in ("self", *zygotes.values())],
        "files": [name for folder in temporary for name in os.listdir(folder) if ours.match(name)],
    }


def _count(path: str) -> int:
    return Path(path).read_text().count("\n")
