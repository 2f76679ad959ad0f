from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.cli.common import find_run, print_json, read_settings, settings_help
from workbench.cli.main import join_parameters, run_command
from workbench.config import ROOT, Config, make_config
from workbench.types import WorkbenchError


def workbench(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "workbench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **environment})


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train", "--stps", "3"], "No such option: --stps"),
        (["trian"], "No such command 'trian'"),
        (["resume"], "Missing argument 'RUN'"),
        (["resume", "x", "--steps", "many"], "'--steps': Input should be a valid integer"),
        (["resume", "x", "--steps", "0"], "greater than or equal to 1 (given: '0')."),
        (["report", "x", "y"], "unexpected extra argument"),
        (["train", "--set"], "requires an argument"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_status_2(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert err.count("\n") == 1
    assert "--help`" in err


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("steps: 1\nseed: 2\nsteps: 3\n", "sets 'steps' twice"),
        ('{"config": {"seed": 1, "seed": 2}}', "sets 'seed' twice"),
        ("steps: true\n", "steps=True is not accepted: expected a whole number from 1 to"),
        ("- steps\n", "holds a list, not settings"),
        ("steps: [\n", "is no YAML or JSON"),
    ],
)
def test_a_file_of_settings_that_means_two_things_is_refused(
    text: str, sentence: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    assert run_command(["train", "--config", str(file), "--run", str(tmp_path / "run")]) == 1
    err = capsys.readouterr().err
    assert sentence in err
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train", "--set", "stps=3"], "'stps' is no setting: did you mean 'steps'?"),
        (["train", "--set", "steps"], "'steps' is no setting: expected key=value"),
        (["train", "--set", "steps=0"], "steps='0' is not accepted: expected a whole number from 1 to 1000000; give"),
        (
            ["train", "--set", "loss=ppo"],
            "loss='ppo' is not accepted: expected grpo, dr_grpo, dapo, gspo or cispo; give",
        ),
        (["train", "--set", "mismatch=mask"], "mismatch=mask needs ratio=decoupled"),
        (["train", "--config", "none.yaml"], "'none.yaml' does not exist"),
        (["train", "--config", "."], "'.' cannot be read (Is a directory): --config takes a YAML or JSON file"),
        (["resume", "runs/none"], "'runs/none' is no run, it does not exist"),
        (["report", "runs/none"], "'runs/none' is no run, it does not exist"),
        (["notebook", "04_training", "-p", "steps"], "-p steps has no value"),
        (["notebook", "04_training", "-psteps"], "-p steps has no value: expected -p key value, for example -p steps"),
        (["notebook", "04_training", "-psteps=1", "-p", "steps", "2"], "-p steps is given twice, last with '2'"),
    ],
)
def test_a_mistake_is_one_sentence_and_status_1(
    arguments: list[str],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command(arguments) == 1
    out, err = capsys.readouterr()
    assert out == ""
    last = err.splitlines()[-1]
    assert sentence in last
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_the_command_is_installed_and_debug_shows_the_traceback() -> None:
    done = workbench("report", "nowhere")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert "Traceback" in workbench("report", "nowhere", WORKBENCH_DEBUG="1").stderr


def test_help_lists_commands_and_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command([]) == 0
    commands = capsys.readouterr().out
    for name in ("lab", "notebook", "train", "resume", "evaluate", "report", "doctor"):
        assert f"  {name} " in commands
    assert run_command(["train", "--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"{name}=" in text for name in Config.model_fields)
    assert settings_help().count("\n") == len(Config.model_fields) + 1


def test_settings_come_from_a_file_and_pairs_win(tmp_path: Path) -> None:
    yaml = tmp_path / "settings.yaml"
    yaml.write_text("steps: 7\nseed: 3\nbuffer: false\nlearning_rate: null\n")
    config = read_settings(yaml, ["steps=9", "epsilon=0.2"])
    assert config == make_config(steps=9, seed=3, buffer=False, epsilon=0.2)
    as_json = tmp_path / "config.json"
    as_json.write_text(json.dumps({"format": 1, "config": config.model_dump()}))
    assert read_settings(as_json, []) == config
    yaml.write_text("")
    assert read_settings(yaml, []) == make_config()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [("- 1\n", "holds a list, not settings"), ("a: [\n", "is no YAML or JSON"), ("stps: 1\n", "'stps' is no setting")],
)
def test_a_bad_settings_file_is_told(tmp_path: Path, content: str, sentence: str) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(content)
    with pytest.raises(WorkbenchError, match=sentence) as caught:
        read_settings(file, [])
    assert "\n" not in str(caught.value)


def test_two_word_parameters_are_joined() -> None:
    given = ["notebook", "04_training", "-p", "steps", "-3", "-p", "policy=x", "--out", "o", "-p", "a", "b=c"]
    expected = ["notebook", "04_training", "-p", "steps=-3", "-p", "policy=x", "--out", "o", "-p", "a=b=c"]
    assert join_parameters(given) == expected
    assert join_parameters(["train", "-p", "a"]) == ["train", "-p", "a"]


def test_json_is_one_line_of_finite_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": float("nan"), "b": [1, (float("inf"), "é\n")], "path": Path("x")})
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == {"a": None, "b": [1, [None, "é\n"]], "path": "x"}


def test_a_name_that_is_no_run_stays_as_it_is() -> None:
    assert find_run("no-such-run") == Path("no-such-run")


def test_output_into_a_closed_pipe_is_quiet() -> None:
    command = f"{sys.executable} -m workbench train --help | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.startswith("Usage")
    assert done.stderr == ""


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_a_stream_that_is_closed_from_the_start_changes_nothing(closed: str) -> None:
    number = {"stdout": 1, "stderr": 2}[closed]
    command = [sys.executable, "-m", "workbench", "tasks", "list"]
    done = subprocess.run(command, preexec_fn=lambda: os.close(number), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("used-cars" in done.stdout) == (closed == "stderr")
