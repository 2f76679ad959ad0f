"""`workbench gpu-check`: the same script on the CPU, and what it says without a GPU and of a wrong result."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from workbench.agent import kernels, llama
from workbench.agent.kernels import FAST, Flash, kernel_of
from workbench.cli import gpu_check
from workbench.cli.main import run_command

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
