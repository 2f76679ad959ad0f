"""`workbench gpu-check`: the same script on the CPU, and what it says without a GPU and of a wrong result."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from workbench.agent import kernels, llama
from workbench.agent.kernels import FAST, Flash, kernel_of
from workbench.cli import gpu_check
from workbench.cli.main import run_command
from workbench.sandbox import workfolder

SIZES = "--steps 2 --plain-steps 1".split()
SMALL = ["--device", "cpu", "--policy", "tiny", *SIZES]


def test_on_the_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["gpu-check", *SMALL, "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    results = found["results"]
    for name in ("logprob_error", "sampler_error", "gradient_error"):
        assert results[name]["median"] < 1e-4, name
    assert (results["step_s"]["n"], results["plain_step_s"]["n"]) == (2, 1)
    assert results["ratio"]["median"] > 0
    assert results["peak_mb"]["median"] > 100
    assert found["machine"]["kernel"] == "flash"
    assert "step 2 of 2" in captured.err


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["gpu-check"]) == 1
    assert "no CUDA device" in capsys.readouterr().err


@pytest.mark.parametrize("device", ["tpu", "mps", "cuda:", "cuda:x", "auto", ""])
def test_what_is_no_device_is_refused_before_anything_is_built(
    device: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_check, "_big_policy", lambda *_: pytest.fail("it was built"))
    assert run_command(["gpu-check", "--device", device]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"--device {device!r} is not accepted: expected cuda, cuda:N or cpu; give --device cpu")
    assert error.count("\n") == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_told_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["gpu-check", "--device", "cuda:5"]) == 1
    assert capsys.readouterr().err.startswith("--device cuda:5: there is no CUDA device; run it on")


def test_its_folder_goes_with_it_and_that_of_a_killed_one_at_the_next_start(tmp_path: Path) -> None:
    """Neither SIGTERM nor SIGKILL leaves hundreds of megabytes behind for good."""
    code = (
        "import sys, time; from pathlib import Path; from workbench.cli import gpu_check, main\n"
        "def build(folder, tell): (folder / 'model').write_text('x'); print('built', flush=True); time.sleep(60)\n"
        "gpu_check._big_policy = build; main.main(['gpu-check', '--device', 'cpu'])"
    )
    prefix = workfolder._prefix("gpu-check")
    for number, status, left in ((signal.SIGKILL, -9, 1), (signal.SIGTERM, 143, 0)):
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)}
        )
        assert process.stdout is not None
        with process.stdout:
            assert process.stdout.readline() == "built\n"
            folders = [path.name for path in tmp_path.iterdir()]
            assert [name.startswith(f"{prefix}{process.pid}-") for name in folders] == [True], folders
            process.send_signal(number)
            assert process.wait(20) == status
        assert len(list(tmp_path.iterdir())) == left


def test_a_wrong_result_is_an_error(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(Flash):
        def backward(self, *arguments: Any) -> Any:
            query, key, value = super().backward(*arguments)
            return query, key, value * 1.1

    kernel_of.cache_clear()
    monkeypatch.setitem(FAST, "cpu", Wrong())
    monkeypatch.setattr(kernels, "agrees", lambda *_: True)
    try:
        assert run_command(["gpu-check", *SMALL]) == 1
    finally:
        kernel_of.cache_clear()
    assert "gradient_error is" in capsys.readouterr().err


def test_a_policy_that_shares_nothing_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else both sides would be transformers' own path, and equal whatever the GPU does."""
    monkeypatch.setattr(llama, "_read", lambda model: None)
    assert run_command(["gpu-check", *SMALL]) == 1
    assert "does not share prefixes" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_without_a_pretrained_model_one_of_its_shape_is_built(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_check, "default_policy", lambda: "tiny")
    assert run_command(["gpu-check", "--device", "cpu", *SIZES, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["workload"]["parameters"] > 100_000_000
    for name in ("sampler", "gradient"):
        gap, rounding = (found["results"][f"{name}_{what}"]["median"] for what in ("gap", "rounding"))
        assert 0 <= gap < 2 * rounding + 1e-4


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    assert run_command(["gpu-check", "--steps", "2", "--plain-steps", "1"]) == 0
