from __future__ import annotations

import json
import math
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench import database
from workbench.config import make_config
from workbench.folder import new_path
from workbench.run import Run
from workbench.types import Action, Feedback, Group, Kind, Reward, State, StopReason, Turn, Verdict, WorkbenchError

ODD = "a\0b \ud800 \U0010ffff \ue000 é 漢 \r\n\u202e end"


def make_turn(state: State, group: str, member: int, **feedback: object) -> Turn:
    ids = tuple(range(member, member + 5))
    action = Action(f"text {member} {ODD}", ids, tuple(-0.5 - n for n in range(5)), 3, StopReason.EOS)
    values: dict[str, object] = {"verdict": Verdict.OK, "code": "print(1)", "stdout": ODD, "score": 0.5, "cpu_s": 0.25}
    reward = None if member == 2 else Reward(0.1 * member, {"valid": 1.0, "position": 0.1})
    return Turn(state, action, Feedback(**{**values, **feedback}), reward, group, f"{group}/{member}")


def make_group(step: int, position: int = 0, members: int = 3) -> Group:
    state = State("iris", Kind.DEBUG, f"x = {step}.{position}{ODD}", f"NameError {ODD}", "out", 0.25, "parent")
    identity = f"{step}/{position}"
    return Group(identity, state, (1, 2, 70_000), tuple(make_turn(state, identity, n) for n in range(members)))


@pytest.fixture
def run(tmp_path: Path):
    with Run.create(tmp_path / "run", make_config(seed=3), {"cpu": "here"}) as run:
        yield run


def write_text(text: str):
    return lambda folder: (folder / "state.txt").write_text(text)


# --- records


def test_groups_come_back_equal(run: Run) -> None:
    groups = [make_group(1, 0), make_group(1, 1)]
    run.commit(1, groups=groups)
    assert run.groups(1) == groups
    assert run.groups(2) == []


def test_turns_and_states_are_frames(run: Run) -> None:
    run.commit(1, groups=[make_group(1)])
    run.commit(2, groups=[make_group(2)], states=[State("other", Kind.DRAFT)])
    turns = run.turns()
    assert list(turns["step"]) == [1, 1, 1, 2, 2, 2]
    assert math.isnan(turns["reward"][2])
    assert turns["stdout"][0] == ODD
    assert turns["components"][0] == {"valid": 1.0, "position": 0.1}
    assert turns["components"][2] == {}
    assert "token_ids" not in turns
    with_tokens = run.turns(2, tokens=True)
    assert with_tokens["token_ids"][1] == (1, 2, 3, 4, 5)
    assert with_tokens["sampler_logprobs"][1] == (-0.5, -1.5, -2.5, -3.5, -4.5)
    states = run.states()
    assert list(states["step"]) == [1, 2, 2]
    assert states["code"][0] == f"x = 1.0{ODD}"
    assert set(states["task"]) == {"iris", "other"}


def test_a_state_met_again_keeps_its_first_step(run: Run) -> None:
    group = make_group(1)
    run.commit(1, groups=[group])
    run.commit(2, groups=[group])
    assert list(run.states()["step"]) == [1]
    assert run.groups(2) == [group]


def test_metrics_have_a_row_per_step_and_nan_is_a_gap(run: Run) -> None:
    run.commit(1, metrics={"loss": 1.5, "odd": float("nan")})
    run.commit(2, metrics={"loss": 2.5, "new": 7, "huge": float("inf")})
    run.commit(3)
    frame = run.metrics()
    assert list(frame["step"]) == [1, 2, 3]
    assert list(frame.columns) == ["step", "at", "loss", "odd", "new", "huge"]
    assert frame["loss"][1] == 2.5
    assert frame["odd"].isna().all()
    assert frame["huge"][1] == math.inf
    assert math.isnan(frame["loss"][2])
    assert list(run.metrics(since=2)["step"]) == [2, 3]


def test_an_empty_run_reads_as_empty(run: Run) -> None:
    assert run.metrics().empty
    assert run.turns().empty
    assert run.states().empty
    assert run.knob_events().empty
    assert "knob" in run.knob_events()
    assert list(run.curriculum_events()) == []
    assert run.last_step() == 0
    assert run.latest_checkpoint() is None


def test_events_come_back_equal_and_in_order(run: Run) -> None:
    first = [{"event": "Added", "step": 1, "id": "a", "text": ODD.replace("\ud800", "")}, {"event": "Chosen", "x": 0.1}]
    run.commit(1, curriculum_events=first)
    run.commit(
        2, curriculum_events=[{"event": "Observed", "p": 1 / 3}], knob_events=[{"knob": "tau", "old": 5, "new": 3}]
    )
    assert list(run.curriculum_events()) == [*first, {"event": "Observed", "p": 1 / 3}]
    assert list(run.curriculum_events(since=2)) == [{"event": "Observed", "p": 1 / 3}]
    knobs = run.knob_events()
    assert knobs.loc[0, ["step", "knob", "old", "new"]].tolist() == [2, "tau", 5, 3]


def test_meta_results_and_environment(run: Run) -> None:
    assert run.meta("x") is None
    run.set_meta("x", {"a": [1, None, 0.1]})
    run.set_meta("x", {"a": 2})
    assert run.meta("x") == {"a": 2}
    assert run.result("k") is None
    run.store_result("k", {"stdout": ODD, "submission": b"\0\xff", "cpu_s": 0.1})
    run.store_result("k", {"stdout": "later"})
    assert run.result("k") == {"stdout": ODD, "submission": b"\0\xff", "cpu_s": 0.1}
    run.set_environment({"torch": "2"})
    again = Run(run.path)
    assert again.environment == {"torch": "2"}
    assert again.config == make_config(seed=3)


def test_a_long_stream_is_cut_and_a_script_is_not(run: Run) -> None:
    long = "x" * 5_000_000
    state = State("t", Kind.DEBUG, code=long)
    run.commit(1, groups=[Group("g", state, (), (make_turn(state, "g", 0, stdout=long, code=long),))])
    row = run.turns(1).iloc[0]
    assert len(row["stdout"]) < 70_000
    assert "characters left out" in row["stdout"]
    assert row["code"] == long
    assert run.groups(1)[0].state == state


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(categories=["L", "N", "P", "Z", "C", "Cs"]), max_size=200))
def test_any_text_survives_a_cell(text: str) -> None:
    cell = database.text_cell(text)
    assert database.cell_text(cell) == text
    if isinstance(cell, str):
        cell.encode()


def test_steps_rise_and_are_whole(run: Run) -> None:
    run.commit(2)
    with pytest.raises(ValueError, match="step 2 cannot be recorded after step 2"):
        run.commit(2)
    with pytest.raises(TypeError):
        run.commit(3, groups=[make_group(3)], curriculum_events=[{"bad": object()}])
    assert run.last_step() == 2
    assert run.turns().empty
    run.commit(3)


def test_truncate_goes_back_and_keeps_executions(run: Run) -> None:
    for step in range(1, 6):
        event = [{"step": step}]
        run.commit(step, groups=[make_group(step)], metrics={"m": step}, curriculum_events=event, knob_events=event)
        run.save_checkpoint(step, write_text(str(step)))
    run.store_result("k", {"v": 1})
    run.truncate(4)
    assert list(run.metrics()["step"]) == [1, 2, 3, 4]
    assert list(run.states()["step"]) == [1, 2, 3, 4]
    assert run.turns()["step"].max() == 4
    assert list(run.curriculum_events())[-1] == {"step": 4}
    assert run.result("k") == {"v": 1}
    assert run.latest_checkpoint() == (4, run.path / "checkpoints" / "4")
    run.commit(5, groups=[make_group(5)])
    run.save_checkpoint(5, write_text("again"))
    assert (run.path / "checkpoints" / "5" / "state.txt").read_text() == "again"
    run.truncate(0)
    assert run.latest_checkpoint() is None
    assert list((run.path / "checkpoints").iterdir()) == []


def turned(knob: str, new: object, outcome: str = "applied") -> dict[str, object]:
    return {"knob": knob, "new": new, "outcome": outcome}


def knobs_of(run: Run) -> list[list[object]]:
    return run.knob_events()[["step", "knob", "new", "outcome"]].values.tolist()


def test_knobs_outlive_going_back_until_they_are_turned_anew(run: Run) -> None:
    for step in range(1, 5):
        run.commit(step, knob_events=[turned("tau", step)] if step > 2 else [])
    run.record_knobs(5, [turned("steps", 4), turned("temperature", math.nan, "refused")])
    before = knobs_of(run)
    assert [row[0] for row in before] == [3, 4, 5, 5]
    run.truncate(2)
    assert str(knobs_of(run)) == str(before)
    run.commit(3, knob_events=[turned("tau", 9, "refused")])
    assert len(knobs_of(run)) == 5, "a request that is refused replaces nothing"
    run.record_knobs(4, [turned("tau", 7)])
    run.commit(5, knob_events=[turned("steps", 8)])
    assert [row[:3] for row in knobs_of(run) if row[3] == "applied"] == [
        [3, "tau", 3],
        [4, "tau", 4],
        [5, "steps", 4],
        [4, "tau", 7],
        [5, "steps", 8],
    ]
    run.truncate(2)
    run.commit(3, knob_events=[turned("steps", 6)])
    assert [row[:2] for row in knobs_of(run) if row[1] == "steps"] == [[3, "steps"]]


@pytest.mark.parametrize("end", ["truncate", "commit", "record_knobs"])
def test_a_run_that_goes_on_is_not_at_its_end(run: Run, end: str) -> None:
    run.commit(1)
    for key in ("summary", "drafts before training", "drafts after step 1", "drafts after step 12"):
        run.set_meta(key, {"steps": 1})
    {
        "truncate": lambda: run.truncate(1),
        "commit": lambda: run.commit(2),
        "record_knobs": lambda: run.record_knobs(2, [turned("steps", 9)]),
    }[end]()
    assert run.meta("summary") is None
    assert run.meta("drafts before training") == run.meta("drafts after step 1") == {"steps": 1}
    assert (run.meta("drafts after step 12") is None) == (end == "truncate")


def test_turns_can_be_read_in_part(run: Run) -> None:
    run.commit(1, groups=[make_group(1)])
    assert list(run.turns(columns=["reward", "step"]).columns) == ["reward", "step"]
    assert run.turns(columns=["text"])["text"].tolist() == run.turns()["text"].tolist()
    with pytest.raises(ValueError, match="turns have no column 'rewards'"):
        run.turns(columns=["rewards"])


# --- checkpoints


def test_the_newest_two_checkpoints_stay(run: Run) -> None:
    for step in (1, 2, 5, 5):
        run.save_checkpoint(step, write_text(str(step)))
    assert sorted(p.name for p in (run.path / "checkpoints").iterdir()) == ["2", "5"]
    assert (run.path / "latest").read_text() == "5\n"


def test_a_failed_checkpoint_leaves_the_one_before(run: Run) -> None:
    run.save_checkpoint(1, write_text("one"))

    def broken(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise RuntimeError("model is broken")

    with pytest.raises(RuntimeError, match="model is broken"):
        run.save_checkpoint(2, broken)
    assert run.latest_checkpoint() == (1, run.path / "checkpoints" / "1")
    assert sorted(p.name for p in (run.path / "checkpoints").iterdir()) == ["1"]


def test_half_written_checkpoints_are_ignored_and_removed(run: Run) -> None:
    run.save_checkpoint(1, write_text("one"))
    run.close()
    folder = run.path / "checkpoints"
    (folder / ".2.aside").mkdir()
    (folder / "2").mkdir()  # renamed, but killed before `latest` named it
    (folder / "1").rename(folder / ".1.old")  # killed while the same step was being replaced
    with Run.open(run.path) as again:
        assert again.latest_checkpoint() == (1, folder / "1")
        assert [p.name for p in folder.iterdir()] == ["1"]


def test_a_wrong_latest_is_told(run: Run) -> None:
    run.save_checkpoint(1, write_text("one"))
    (run.path / "latest").write_text("abc")
    with pytest.raises(WorkbenchError, match=r"holds 'abc', not a step.*there are: \[1\]"):
        run.latest_checkpoint()
    (run.path / "latest").write_text("7\n")
    with pytest.raises(WorkbenchError, match="is missing, though"):
        run.latest_checkpoint()
    (run.path / "latest").unlink()
    (run.path / "latest").mkdir()
    with pytest.raises(WorkbenchError, match=r"latest' cannot be read .*the number of a checkpoint \(there are: \[1\]"):
        run.latest_checkpoint()


def test_a_lost_latest_loses_no_checkpoint(run: Run) -> None:
    for step in (1, 2):
        run.save_checkpoint(step, write_text(str(step)))
    run.close()
    (run.path / "latest").unlink()
    with pytest.raises(WorkbenchError, match=r"is missing: write the number.*there are: \[1, 2\]"):
        Run.open(run.path)
    (run.path / "latest").write_bytes(b"\xff")
    with pytest.raises(WorkbenchError, match="not a step"):
        Run.open(run.path)
    (run.path / "latest").write_text("2")
    with Run.open(run.path) as again:
        assert again.latest_checkpoint() == (2, run.path / "checkpoints" / "2")


def test_results_are_stored_while_a_checkpoint_is_written(run: Run) -> None:
    writing, stored = threading.Event(), threading.Event()

    def slow(folder: Path) -> None:
        writing.set()
        assert stored.wait(10)

    thread = threading.Thread(target=run.save_checkpoint, args=(1, slow))
    thread.start()
    assert writing.wait(10)
    run.store_result("k", {"a": 1})
    stored.set()
    thread.join()
    assert run.latest_checkpoint() is not None


# --- one writer, many readers


def test_a_second_writer_is_refused_with_the_pid(run: Run) -> None:
    with pytest.raises(WorkbenchError, match=f"is being written by process {os.getpid()}"):
        Run.open(run.path)
    code = f"from workbench.run import Run; Run.open({str(run.path)!r})"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert f"process {os.getpid()}: stop that one first" in other.stderr
    run.close()
    Run.open(run.path).close()


def test_readers_read_while_a_writer_writes(run: Run) -> None:
    reader = Run.open(run.path, readonly=True)
    seen: list[int] = []
    errors: list[BaseException] = []
    done = threading.Event()

    def read() -> None:
        try:
            while not done.is_set():
                frame = reader.metrics()
                seen.append(len(frame))
                assert frame.empty or frame["m"].tolist() == [float(n) for n in frame["step"]]
                reader.turns()
        except BaseException as error:  # told to the main thread
            errors.append(error)

    def store(name: str) -> None:
        for n in range(40):
            run.store_result(f"{name}{n}", {"n": n})

    threads = [threading.Thread(target=read) for _ in range(2)]
    threads += [threading.Thread(target=store, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for step in range(1, 41):
        run.commit(step, groups=[make_group(step)], metrics={"m": step})
    done.set()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(seen) > 2
    assert reader.last_step() == 40
    assert all(run.result(f"{name}{n}") == {"n": n} for name in "ab" for n in range(40))


def test_one_failed_read_does_not_freeze_the_next(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, connect = Run(run.path), database.connect
    run.commit(1)

    def fail(*_: object, **__: object) -> None:
        raise sqlite3.OperationalError("unable to open database file")

    for broken in (reader, run):
        monkeypatch.setattr(database, "connect", fail)
        with pytest.raises(WorkbenchError, match="cannot be read"):
            broken.last_step()
        monkeypatch.setattr(database, "connect", connect)
        run.commit(run.last_step() + 1)
        assert broken.last_step() == run.last_step()


def test_a_reader_cannot_write(run: Run) -> None:
    reader = Run(run.path)
    for write in (
        lambda: reader.commit(1),
        lambda: reader.store_result("k", {}),
        lambda: reader.set_environment({}),
        lambda: reader.save_checkpoint(1, write_text("x")),
    ):
        with pytest.raises(WorkbenchError, match="open for reading only"):
            write()


# --- bad folders


def test_bad_folders_get_one_sentence(tmp_path: Path) -> None:
    config = make_config()
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.doc").write_text("x")
    cases = [
        (lambda: Run.create(tmp_path / "file", config, {}), "is a file: a run needs a folder"),
        (lambda: Run.create(tmp_path / "file" / "below", config, {}), "cannot be written"),
        (lambda: Run.create(tmp_path / "no\udcffutf8", config, {}), "is no UTF-8 text"),
        (lambda: Run.create(tmp_path / "full", config, {}), "is not empty .it holds 'thesis.doc'"),
        (lambda: Run.open(tmp_path / "file"), "is a file: expected the folder of a run"),
        (lambda: Run.open(tmp_path / "none"), "is no run, it does not exist"),
        (lambda: Run(tmp_path / "full"), "is no run, it has no config.json"),
    ]
    for call, sentence in cases:
        with pytest.raises(WorkbenchError, match=sentence) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_a_taken_folder_is_refused_and_an_unfinished_one_is_not(run: Run) -> None:
    run.close()
    with pytest.raises(WorkbenchError, match="already holds a run: go on with `workbench resume"):
        Run.create(run.path, make_config(), {})
    (run.path / "config.json").unlink()  # killed before the run had come to be
    with Run.create(run.path, make_config(seed=9), {}) as again:
        assert again.config.seed == 9


def test_other_formats_and_damage_are_told(run: Run) -> None:
    run.close()
    file = run.path / "config.json"
    good = file.read_text()
    for change, sentence in [
        ({"format": 99}, "is a run of format 99, and this workbench reads format 2"),
        ({"config": {"no_such": 1}}, "'no_such' is no setting"),
        ({"config": 3}, "does not fit this version"),
    ]:
        file.write_text(json.dumps({**json.loads(good), **change}))
        with pytest.raises(WorkbenchError, match=sentence):
            Run.open(run.path)
    file.write_text("{")
    with pytest.raises(WorkbenchError, match="cannot be read"):
        Run(run.path)
    file.write_text(good)
    (run.path / "run.sqlite").write_bytes(b"garbage" * 1000)
    with pytest.raises(WorkbenchError, match="damaged"):
        Run.open(run.path)
    with pytest.raises(WorkbenchError, match="damaged"):  # the lock was given back
        Run.open(run.path)


def test_the_database_has_the_format_too(run: Run) -> None:
    run.close()
    connection = database.connect(run.path / "run.sqlite", readonly=False)
    connection.execute("PRAGMA user_version=3")
    connection.close()
    with pytest.raises(WorkbenchError, match="format 3"):
        Run.open(run.path)


def test_new_paths_of_one_instant_are_different_folders(tmp_path: Path) -> None:
    config = make_config(policy="/models/My Model.gguf", seed=4)
    root, found = tmp_path / "runs", []
    threads = [threading.Thread(target=lambda: found.append(new_path(config, root))) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 20
    assert min(found).name.endswith("My-Model-s4")
    with Run.create(found[0], config, {}):
        pass
    (tmp_path / "file").touch()
    with pytest.raises(WorkbenchError, match="cannot be written"):
        new_path(config, tmp_path / "file")


@pytest.fixture
def public():
    """A folder that another user can reach, which pytest's own are not."""
    with tempfile.TemporaryDirectory(prefix="workbench-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        for child in folder.iterdir():
            child.chmod(0o755)


def in_subprocess(code: str, **options: object) -> subprocess.CompletedProcess[str]:
    program = textwrap.dedent(code)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, **options)


UNPRIVILEGED = """
import os, sys
from pathlib import Path
from workbench.config import make_config
from workbench.run import Run
from workbench.types import WorkbenchError
if os.getuid() == 0:
    os.setgid(65534); os.setuid(65534)
try:
    {call}
except WorkbenchError as error:
    print(error)
"""


def test_a_read_only_folder_is_refused(public: Path) -> None:
    closed, taken = public / "closed", public / "taken"
    with Run.create(taken, make_config(), {}) as run:
        run.commit(1, metrics={"m": 1})
    closed.mkdir(mode=0o555)
    taken.chmod(0o555)
    for call, sentence in [
        (f"Run.create('{closed}/run', make_config(), {{}})", "cannot be written"),
        (f"Run.create('{closed}', make_config(), {{}})", "cannot be written"),
        (f"Run.open('{taken}')", "cannot be written"),
        (f"print(len(Run('{taken}').metrics()))", "1"),
    ]:
        done = in_subprocess(UNPRIVILEGED.format(call=call))
        assert done.returncode == 0, done.stderr
        assert sentence in done.stdout
        assert done.stdout.count("\n") == 1


def test_a_run_with_an_open_wal_is_read_from_a_read_only_folder(public: Path, run: Run) -> None:
    run.commit(1, metrics={"m": 1})
    copy = public / "copy"
    copy.mkdir()
    for name in ("config.json", "run.sqlite", "run.sqlite-wal"):
        shutil.copyfile(run.path / name, copy / name)
    copy.chmod(0o555)
    call = (
        f"run = Run('{copy}'); print(len(run.metrics()), run.last_step(), flush=True); input(); print(run.last_step())"
    )
    program = [sys.executable, "-c", UNPRIVILEGED.format(call=call)]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdin is not None
        assert reader.stdout.readline() == "1 1\n"
        run.commit(2, metrics={"m": 2})
        copy.chmod(0o755)
        shutil.copyfile(run.path / "run.sqlite-wal", copy / "run.sqlite-wal")
        copy.chmod(0o555)
        reader.stdin.write("\n")
        reader.stdin.flush()
        assert reader.stdout.readline() == "2\n", "what is read again is read as it is by now"


# --- full disks and kills

FILL = """
from pathlib import Path
from workbench.run import Run
from workbench.types import WorkbenchError
run = Run.open({path!r})
step = run.last_step()
{limit}
try:
    while True:
        step += 1
        run.commit(step, metrics={{f"m{{n}}": n for n in range(200)}}, curriculum_events=[{{"x": "y" * 5000}}])
        run.store_result(str(step), {{"x": list(range(1000))}})
        {extra}
except WorkbenchError as error:
    print(error)
print(run.last_step(), step)
"""


def check_whole(run: Run, last: int) -> None:
    frame = run.metrics()
    assert list(frame["step"]) == list(range(1, last + 1))
    assert frame.notna().all().all()
    assert len(list(run.curriculum_events())) == last


def test_a_full_disk_stops_with_a_sentence_and_keeps_what_was_there(run: Run) -> None:
    run.close()
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({2**20}, {resource.RLIM_INFINITY}))"
    done = in_subprocess(FILL.format(path=str(run.path), limit=limit, extra=""))
    sentence, steps = done.stdout.splitlines()
    assert "the disk is full or failing" in sentence, done.stderr
    last, tried = map(int, steps.split())
    assert tried - 1 <= last <= tried
    assert last > 3
    with Run.open(run.path) as again:
        check_whole(again, last)
        again.commit(last + 1)


def test_a_full_file_system_stops_with_a_sentence(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(disk)]
    if os.getuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("needs root and a mount of tmpfs: run the tests as root")
    try:
        Run.create(disk / "run", make_config(), {}).close()
        extra = 'run.save_checkpoint(step, lambda folder: (folder / "w").write_bytes(b"x" * 100_000))'
        done = in_subprocess(FILL.format(path=str(disk / "run"), limit="", extra=extra))
        sentence, steps = done.stdout.splitlines()
        assert "the disk is full or failing" in sentence, done.stderr
        assert f"run `workbench resume {disk / 'run'}`" in sentence
        last = int(steps.split()[0])
        reader = Run(disk / "run")
        check_whole(reader, last)
        latest = reader.latest_checkpoint()
        assert latest is not None
        assert (latest[1] / "w").stat().st_size == 100_000
        with pytest.raises(WorkbenchError, match=r"cannot be written any more.*free some space and start it again"):
            Run.create(disk / "second", make_config(), {"filler": "x" * 3_000_000})
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


LOOP = """
from pathlib import Path
from workbench.run import Run
run = Run.open({path!r})
latest = run.latest_checkpoint()
run.truncate(latest[0] if latest else 0)
step = latest[0] if latest else 0
print("ready", flush=True)

def write(folder):
    for n in range(5):
        (folder / str(n)).write_text(str(step) * 1000)

while True:
    step += 1
    run.store_result(str(step), {{"step": step}})
    run.commit(step, metrics={{"m": step}}, curriculum_events=[{{"step": step}}, {{"step": step}}])
    run.save_checkpoint(step, write)
"""


def test_kill_at_any_moment_loses_nothing_committed(run: Run) -> None:
    run.close()
    chance = random.Random(0)
    reached = 0
    for _ in range(10):
        process = subprocess.Popen([sys.executable, "-c", LOOP.format(path=str(run.path))], stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        time.sleep(chance.uniform(0.01, 0.25))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        reader = Run(run.path)  # before any writer has tidied up
        latest = reader.latest_checkpoint()
        step = latest[0] if latest else 0
        assert step >= reached
        assert reader.last_step() in (step, step + 1)
        assert reader.metrics()["m"].tolist() == list(range(1, reader.last_step() + 1))
        assert len(list(reader.curriculum_events())) == 2 * reader.last_step()
        assert all(reader.result(str(n)) == {"step": n} for n in range(1, step + 1))
        if latest:
            assert all((latest[1] / str(n)).read_text() == str(step) * 1000 for n in range(5))
        reached = step
    assert reached > 10
    with Run.open(run.path) as again:
        assert all(not p.name.startswith(".") for p in (again.path / "checkpoints").iterdir())


def test_memory_does_not_grow_with_the_run(run: Run) -> None:
    import gc
    import tracemalloc

    def steps(first: int, count: int) -> None:
        for step in range(first, first + count):
            run.commit(step, groups=[make_group(step)], metrics={"m": step}, curriculum_events=[{"s": step}])
            run.store_result(str(step), {"s": step})

    steps(1, 50)
    gc.collect()
    tracemalloc.start()
    steps(51, 20)
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    steps(71, 150)
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert after - before < 100_000
