"""Which level is found, what is said of it, and what is refused; on the real kernel, with means left out or forbidden."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.cli.doctor import Problems
from workbench.cli.doctor import _isolation as doctor
from workbench.config import ROOT
from workbench.sandbox import isolation, mounts, outer, remembered
from workbench.sandbox.executor import Executor, Limits, Request
from workbench.sandbox.isolation import Attacked, Isolation
from workbench.sandbox.outer import Means
from workbench.types import Verdict, WorkbenchError

NOTHING = ("landlock", "namespaces", "seccomp")
BEST = isolation.probe().level

strong = pytest.mark.skipif(BEST != "B", reason="needs bubblewrap, Landlock 6 and seccomp: see `workbench doctor`")


@strong
@pytest.mark.parametrize(
    ("without", "level", "lacks"),
    [
        ((), "B", "memory limit"),
        (("bubblewrap",), "C", "outer sandbox of bubblewrap"),
        (("landlock",), "C", "Landlock 6 (this kernel offers 0)"),
        (("namespaces",), "D", "namespaces"),
        (("namespaces", "landlock"), "E", "protection of your files"),
        (("seccomp",), "E", "filter of system calls"),
        (NOTHING, "E", "protection of your other processes"),
    ],
)
def test_the_level_is_what_the_means_give(without: tuple[str, ...], level: str, lacks: str) -> None:
    found = isolation.probe(without)
    assert found.level == level, found
    assert any(lacks in phrase for phrase in found.missing), found
    assert (found.hints == ()) is (level == "B")
    assert found.certain


@strong
def test_an_interpreter_behind_a_link_costs_no_level(tmp_path: Path) -> None:
    """As where `.venv` is a link to a folder on another disk."""
    (tmp_path / "linked").symlink_to(sys.prefix)
    look = (
        "import sys\nfrom workbench.sandbox.executor import Executor, Request\nprint(sys.prefix)\n"
        "for without in ((), ('bubblewrap',)):\n"
        "    with Executor([], 1, without=without) as executor:\n"
        "        result = executor.submit(Request('import sys, numpy; print(sys.prefix)')).result(60)\n"
        "        print(result.level, result.stdout, result.stderr)\n"
    )
    linked = f"{tmp_path}/linked"
    command = [linked + sys.executable.removeprefix(sys.prefix), "-c", look]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert done.stdout.split() == [linked, "B", linked, "C", linked], done


@strong
def test_the_hint_is_about_what_is_missing() -> None:
    assert "Install bubblewrap" in isolation.probe(["bubblewrap"]).hints[0]
    assert isolation.probe(["seccomp"]).hints == (
        "Install libseccomp: `apt-get install libseccomp2` and `pip install pyseccomp`.",
    )
    assert any("lsm=" in hint for hint in isolation.probe(["landlock"]).hints)


def test_below_the_least_level_is_refused_in_one_sentence_with_its_remedy() -> None:
    with pytest.raises(WorkbenchError) as best:
        isolation.require("A", unsafe=False)
    assert "memory.max of a cgroup v2) is not offered yet, B is the strongest" in str(best.value)
    assert f"this machine gives {BEST}" in str(best.value)
    with pytest.raises(WorkbenchError) as weak:
        isolation.require("C", unsafe=False, without=["namespaces"])
    assert str(weak.value).startswith("Isolation level D is weaker than min_level=C.")
    with pytest.raises(WorkbenchError) as none:
        isolation.require("E", unsafe=False, without=NOTHING)
    assert "Model code would run with your rights here (isolation level E)" in str(none.value)
    assert "unsafe_executor=true" in str(none.value)
    for text in (str(best.value), str(weak.value), str(none.value)):
        assert "\n" not in text
    assert isolation.require("D", unsafe=True, without=NOTHING).level == "E"


@strong
def test_levels_between_are_refused_by_order() -> None:
    assert isolation.require("C", unsafe=False, without=["bubblewrap"]).level == "C"
    with pytest.raises(WorkbenchError, match="Isolation level D is weaker than min_level=C"):
        isolation.require("C", unsafe=False, without=["namespaces"])
    with pytest.raises(WorkbenchError, match="Isolation level C is weaker than min_level=B"):
        Executor(min_level="B", without=["bubblewrap"]).start()


@strong
def test_a_lower_level_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    isolation._say_once.cache_clear()
    with caplog.at_level(logging.WARNING, logger="workbench"):
        for _ in range(3):
            isolation.require("D", unsafe=False, without=["bubblewrap"])
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert "isolation level C" in said[0]
    assert "bubblewrap" in said[0]


@pytest.mark.parametrize("without", [("bubblewrap",), ("landlock",), ("namespaces",), NOTHING])
def test_every_level_gives_true_verdicts(without: tuple[str, ...]) -> None:
    level = isolation.probe(without).level
    with Executor(workers=1, flavours=("thin",), without=without, unsafe=True, min_level="E") as executor:

        def run(code: str, **limits: float):
            asked = Limits(**{"cpu_s": 1.0, "wall_s": 2.0, "memory_mb": 256, **limits})  # type: ignore[arg-type]
            return executor.submit(Request(code, limits=asked, flavour="thin")).result(60)

        fine = run("open('submission.csv', 'w').write('a,b')\nprint(40 + 2)")
        assert (fine.verdict, fine.stdout, fine.submission, fine.level) == (Verdict.OK, "42\n", b"a,b", level), fine
        assert run("while True: pass", cpu_s=0.4).verdict is Verdict.TIMEOUT
        assert run("import time; time.sleep(60)", wall_s=0.4).verdict is Verdict.TIMEOUT
        assert run("x = bytearray(10**9)").verdict is Verdict.MEMORY_LIMIT
        assert run("while True: print('x' * 65536)").verdict is Verdict.OUTPUT_LIMIT
        assert run("import os; os.kill(os.getpid(), 9)").signal == 9
        left = run("import os, time\nif os.fork() == 0:\n    os.setsid(); time.sleep(77.125)\nprint('parent')")
        assert (left.verdict, left.stdout) == (Verdict.OK, "parent\n")
        assert left.wall_s < 1
        assert run("print(6 * 7)").stdout == "42\n"


def test_a_crash_of_the_probe_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> list[str]:
        raise KeyError("home")

    monkeypatch.setattr(isolation, "_home", broken)
    with pytest.raises(WorkbenchError, match=r"The probe of the sandbox itself failed .*KeyError: 'home'"):
        isolation._find(())
    problems = Problems()
    assert doctor(problems)["level"] is None
    assert "itself failed" in problems.errors[0]
    assert "container" not in problems.errors[0].lower()


@strong
def test_a_probe_without_an_end_is_tried_again_and_not_remembered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tries = []

    def unfinished(means) -> Attacked:
        tries.append(means.outer)
        return Attacked(unfinished="timeout: Stopped after 5 s of wall time.") if means.outer != "none" else Attacked()

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(isolation, "_attack", unfinished)
    monkeypatch.setattr(isolation, "_known", {})
    found = isolation.probe()
    assert tries == ["bubblewrap", "bubblewrap", "namespaces", "namespaces", "none"]
    assert isolation.probe() == found
    assert len(tries) == 10
    assert (found.level, found.certain) == ("D", False)
    assert "unknown, the probe did not come to its end" in found.tried[0]
    assert found.hints[0].startswith("The probe did not come to its end: run `workbench doctor` again")
    assert not any("container" in hint or "Install bubblewrap" in hint for hint in found.hints)
    assert list(tmp_path.rglob("*.json")) == []


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file of a new user, and a process that has not probed yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(isolation, "_known", {})
    return tmp_path / "workbench" / "isolation.json"


@strong
def test_the_best_level_is_remembered_until_something_changes(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def again(found: Isolation | None = None) -> Isolation:
        """As another process would find it."""
        isolation._known.clear()
        monkeypatch.setattr(isolation, "_find", lambda without: found or pytest.fail("probed again"))
        return isolation.probe()

    first = isolation.probe()
    assert again() == first
    assert len(json.loads(memory.read_text())) == 1
    monkeypatch.setattr(remembered, "FACTS", (*remembered.FACTS, "/proc/self/cmdline"))
    assert again(first) == first
    assert len(json.loads(memory.read_text())) == 2
    for nonsense in ("", "[]", "{", '{"x": 1}', "\0"):
        memory.write_text(nonsense)
        assert again(first) == first


@strong
def test_what_a_hint_would_mend_is_probed_again(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    best, weak = isolation.probe(), isolation.probe(["bubblewrap"])
    assert weak.hints
    assert len(json.loads(memory.read_text())) == 1
    monkeypatch.setattr(isolation, "_find", lambda without: weak)
    assert isolation.probe() == best
    assert isolation.probe(anew=True) == isolation.probe() == weak
    assert json.loads(memory.read_text()) == {}
    monkeypatch.setattr(isolation, "_find", lambda without: best)
    assert doctor(Problems())["level"] == "B"


def test_the_executor_is_refused_off_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation.sys, "platform", "darwin")
    with pytest.raises(
        WorkbenchError, match=r"needs Linux, with unsafe_executor=true too, and this is darwin.*WSL 2\."
    ):
        isolation.require("E", unsafe=True)


@strong
@pytest.mark.parametrize("home", ["/", "/usr", "/tmp", "/nowhere"])
def test_a_home_that_the_sandbox_needs_costs_no_level(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", home)
    assert isolation._find(()).level == "B"
    assert "/proc" not in isolation._home()


@strong
def test_the_home_is_searched_but_for_links_to_what_is_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "own").write_text("x")
    (tmp_path / "python").symlink_to("/usr/bin/env")
    assert isolation._home() == [f"{tmp_path}/own"]


def test_signals_to_others_are_named_as_missing_where_they_arrive() -> None:
    """Below Landlock 6 they do, unless the runs are another user's: root's are, where nobody may read the interpreter."""
    means = Means("none", 5, True)
    seen = isolation._attack(means)
    if seen.refused:
        pytest.skip("needs Landlock and seccomp: see `workbench doctor`")
    missing = "protection of your other processes, the trainer too, against signals"
    same_user = outer.run_uid(means, mounts.view({})) is None
    assert (missing in isolation._describe(means, "D", seen.breaches, (), (), True).missing) == same_user


@strong
@pytest.mark.parametrize("attack", ["read_secret", "connect", "signal_supervisor", "new_namespace"])
def test_one_breach_is_enough_to_lose_the_level(monkeypatch: pytest.MonkeyPatch, attack: str) -> None:
    real = isolation._attack

    def porous(means) -> Attacked:
        return Attacked(frozenset({attack})) if means.outer == "bubblewrap" else real(means)

    monkeypatch.setattr(isolation, "_attack", porous)
    found = isolation._find(())
    assert found.level == "C"
    assert found.tried == (f"bubblewrap: did not hold against {attack}.",)


HARMLESS = {"read_secret", "read_home", "write_folder", "connect", "send_datagram", "signal_supervisor"}
HARMLESS |= {"read_supervisor", "read_parent_memory", "hidden_memory", "many_processes"}


@pytest.mark.parametrize("attack", sorted(HARMLESS))
def test_an_attack_of_the_canary_succeeds_outside(attack: str) -> None:
    """One that cannot succeed would prove nothing inside."""
    code = (
        f"import json, runpy, sys\ncanary = runpy.run_path({str(isolation.HERE / 'canary.py')!r}, run_name='canary')\n"
        f"canary['facts'].update(json.load(sys.stdin))\nprint(canary['_succeeds'](canary[{attack!r}]))"
    )
    with isolation._bait() as facts:
        given = json.dumps({**facts, "home": [facts["secret"]]})
        command = [sys.executable, "-c", code]
        done = subprocess.run(
            command, input=given, capture_output=True, text=True, timeout=60, start_new_session=True, check=False
        )
    assert done.stdout == "True\n", done.stderr


def test_isolation_can_be_compared_and_kept() -> None:
    assert isinstance(hash(isolation.probe()), int)
    assert isolation.probe() is isolation.probe()
    assert isinstance(isolation.probe(), Isolation)
