"""What watching a run must withstand: no descriptor left, a second cancellation, orphans that end by the hundred."""

from __future__ import annotations

import asyncio
import os
import resource
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager

import pytest
from catalogue import PUBLIC

from workbench.sandbox import jail, usage, watch
from workbench.sandbox.executor import Executor, Limits, Request, Result
from workbench.sandbox.watch import Watch
from workbench.types import Verdict, WorkbenchError

ORPHANS = """
import os, time
for number in range(300):
    if os.fork() == 0:
        if os.fork() == 0:
            os._exit(0)
        os._exit(0)
    os.wait()
    time.sleep(0.002)
print("all")
"""


@pytest.mark.parametrize("later", [True, False], ids=["some later", "none"])
def test_a_run_that_no_descriptor_is_left_for_is_ended(
    level: tuple[str, Executor], monkeypatch: pytest.MonkeyPatch, later: bool
) -> None:
    _, executor = level
    executor.submit(Request("", flavour="thin")).result(60)
    before = _at_rest()
    ask, soft = Watch._ask, resource.getrlimit(resource.RLIMIT_NOFILE)

    def ask_and_be_full(self: Watch, public: str | None, work: str | None) -> None:
        ask(self, public, work)
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, soft[1]))

    monkeypatch.setattr(Watch, "_ask", ask_and_be_full)
    note = Watch._note

    def note_and_make_room(self: Watch, message: dict[str, object], fds: list[int]) -> None:
        if later:
            resource.setrlimit(resource.RLIMIT_NOFILE, soft)
        note(self, message, fds)

    monkeypatch.setattr(Watch, "_note", note_and_make_room)
    try:
        result = executor.submit(Request("import time; time.sleep(60)", flavour="thin")).result(60)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, soft)
    assert result.verdict is Verdict.INFRASTRUCTURE
    assert ("ulimit" if later else "Too many open files") in (result.reason or "")
    monkeypatch.undo()
    assert executor.submit(Request("print(1)", flavour="thin")).result(60).stdout == "1\n"
    assert _at_rest() == before


def test_a_program_that_ends_before_its_script_is_no_failure_of_the_script(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the killer of the kernel would end it when memory runs out."""
    note = Watch._note
    monkeypatch.setattr(
        Watch, "_note", lambda self, message, fds: message["event"] != "started" and note(self, message, fds)
    )
    result = executor.submit(Request("import os; os.kill(os.getpid(), 9)")).result(60)
    assert (result.verdict, "before the script" in (result.reason or "")) == (Verdict.INFRASTRUCTURE, True)


def test_a_submission_that_no_descriptor_is_left_to_read_is_no_failure_of_the_script(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    soft, read = resource.getrlimit(resource.RLIMIT_NOFILE), Watch._read_the_rest

    def read_and_be_full(self: Watch) -> None:
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, soft[1]))
        try:
            read(self)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, soft)

    monkeypatch.setattr(Watch, "_read_the_rest", read_and_be_full)
    result = executor.submit(Request("open('submission.csv', 'w').write('1')")).result(60)
    assert (result.verdict, result.submission) == (Verdict.INFRASTRUCTURE, None)


def test_cancelled_twice_it_is_still_ended_first(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kill comes to nothing for a second: what a process in a long system call would do."""
    killed = list[float]()
    send = signal.pidfd_send_signal

    def late(pidfd: int, number: int) -> None:
        killed.append(time.monotonic())

    monkeypatch.setattr(watch.signal, "pidfd_send_signal", late)
    monkeypatch.setattr(Watch, "_insist", lambda self, waited: waited > 1 and send(self._init, signal.SIGKILL))

    async def cancelled() -> list[bool]:
        zygote = await asyncio.wrap_future(executor._call(executor._zygote("full")))
        seen = Watch(zygote.child(), Request("import time; time.sleep(60)"), inherited=0, namespaces=True)
        run = asyncio.create_task(seen.observe(None, None))
        while seen._begun is None:
            await asyncio.sleep(0.01)
        init = os.dup(seen._init)
        states = []
        for _ in range(3):
            run.cancel()
            await asyncio.sleep(0.1)
            states.append(run.done())
        with pytest.raises(asyncio.CancelledError):
            await run
        ended = select.select([init], [], [], 0)[0]
        os.close(init)
        return [*states, bool(ended)]

    if executor.level not in "BC":
        pytest.skip("without namespaces a kill is another one: see `workbench doctor`")
    assert asyncio.run(cancelled()) == [False, False, False, True]
    assert len(killed) == 1


def test_an_executor_with_runs_in_flight_closes_at_once() -> None:
    executor = Executor([PUBLIC], 2, flavours=("thin",)).start()
    futures = [executor.submit(Request("import time; time.sleep(60)", flavour="thin")) for _ in range(4)]
    time.sleep(0.3)
    began = time.monotonic()
    executor.close()
    assert time.monotonic() - began < 5
    assert all(future.cancelled() for future in futures)


def test_a_fork_of_the_owner_ends_without_its_executor(executor: Executor) -> None:
    pid = os.fork()
    if pid == 0:
        executor.close()
        os._exit(0)
    until = time.monotonic() + 20
    while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0 and time.monotonic() < until:
        time.sleep(0.02)
    if ended[0] == 0:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert ended[0] == pid
    assert executor.submit(Request("print(1)")).result(60).stdout == "1\n"


def test_whatever_is_asked_while_it_closes_comes_to_an_end() -> None:
    executor = Executor([PUBLIC], 2, flavours=("thin",), queue=16).start()
    futures, refused = list[Future[Result]](), list[WorkbenchError]()

    def ask() -> None:
        for _ in range(50):
            try:
                futures.append(executor.submit(Request("", flavour="thin")))
            except WorkbenchError as error:
                refused.append(error)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    executor.close()
    for thread in threads:
        thread.join()
    assert wait(futures, 20).not_done == set()
    assert len(futures) + len(refused) == 400
    assert refused, "it closed after all was asked: ask for more"


def test_orphans_that_end_are_collected_at_once(level: tuple[str, Executor]) -> None:
    _, executor = level
    request = Request(ORPHANS, limits=Limits(cpu_s=10, wall_s=20, processes=64), flavour="thin")
    result = executor.submit(request).result(60)
    assert (result.verdict, result.stdout) == (Verdict.OK, "all\n"), result.reason


def test_a_run_that_is_costly_to_watch_is_looked_at_less_often_but_not_seldom(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    def costly(root: int, tree: Callable[[int], list[int]] = usage.tree) -> list[int]:
        looks.append(until := time.thread_time() + 0.3)
        while time.thread_time() < until:
            pass
        return tree(root)

    monkeypatch.setattr(usage, "tree", costly)
    limits = Limits(wall_s=4, memory_mb=256)
    result = executor.submit(Request("import time; time.sleep(9)", limits=limits, flavour="thin")).result(60)
    assert result.verdict is Verdict.TIMEOUT
    assert 3 <= len(looks) <= 8  # each 0.55 s at the soonest; 1.8 s if rest had no bound


def test_sockets_are_looked_at_only_where_they_could_matter() -> None:
    with _socket() as pid:
        assert usage.socket_bytes([pid], worry=2**40) == 0
        assert usage.socket_bytes([pid], worry=1) >= usage._send_buffer()


@contextmanager
def _socket() -> Iterator[int]:
    import socket

    first, second = socket.socketpair()
    with first, second:
        yield os.getpid()


@pytest.mark.skipif(not os.path.exists("/proc/self/ns/mnt"), reason="mount namespaces are missing: a newer kernel")
def test_a_bind_is_read_only_with_what_is_mounted_below_it(tmp_path: os.PathLike[str]) -> None:
    place = f"{tmp_path}/outer"
    os.makedirs(f"{place}/inner")
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(_writes_below(place))
        except BaseException:
            os._exit(99)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == 77:
        pytest.skip("no mount namespace can be made here: see `workbench doctor`")
    assert code == 0


def _writes_below(place: str) -> int:
    """77: no namespace to be had; 1: a file below a read-only bind could be written."""
    try:
        uid, gid = os.getuid(), os.getgid()
        jail.unshare(jail.CLONE_NEWUSER | jail.CLONE_NEWNS)
        jail.map_ids(uid, gid, uid, gid)
        jail.mount("none", "/", flags=jail.MS_REC | jail.MS_PRIVATE)
        jail.tmpfs(f"{place}/inner", megabytes=1, mode="0777")
    except OSError:
        return 77
    jail.mount(place, place, flags=jail.MS_BIND | jail.MS_REC)
    jail.read_only(place)
    for folder in (place, f"{place}/inner"):
        try:
            os.close(os.open(f"{folder}/written", os.O_CREAT | os.O_WRONLY))
        except OSError:
            continue
        return 1
    return 0


def _at_rest() -> int:
    """Processes below us, once children are cloned in advance and ended ones collected: the same for a second."""
    until, counts = time.monotonic() + 10, [0]
    while time.monotonic() < until and (len(counts) < 20 or len(set(counts[-20:])) > 1):
        counts.append(len(usage.tree(os.getpid())))
        time.sleep(0.05)
    return counts[-1]
