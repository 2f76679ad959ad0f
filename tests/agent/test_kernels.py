"""Kernels of attention against the plain computation, and what is done where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from workbench.agent import kernels
from workbench.agent.kernels import FAST, PLAIN, Flash, Kernel, agrees, kernel_of

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    kernel_of.cache_clear()
    yield
    kernel_of.cache_clear()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("limit", [2**24, 500], ids=["at once", "in pieces"])
def test_plain_is_attention_and_its_gradient(monkeypatch: pytest.MonkeyPatch, causal: bool, limit: int) -> None:
    monkeypatch.setattr(kernels, "SCORES", limit)
    generator = torch.Generator().manual_seed(0)
    query, grad = (torch.randn(2, 3, 17, 8, generator=generator, requires_grad=True) for _ in range(2))
    key, value = (torch.randn(2, 3, 17, 8, generator=generator, requires_grad=True) for _ in range(2))
    wanted = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=causal, scale=0.3)
    gradients = torch.autograd.grad(wanted, (query, key, value), grad)
    with torch.no_grad():
        out, lse = PLAIN.forward(query, key, value, causal, 0.3)
        found = PLAIN.backward(grad, query, key, value, (out, lse), causal, 0.3)
    for one, other in zip((out, *found), (wanted, *gradients), strict=True):
        assert (one - other).abs().max() < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_the_kernel_of_this_cpu_agrees(dtype: torch.dtype) -> None:
    assert agrees(FAST["cpu"], CPU, dtype)
    assert kernel_of("cpu", dtype) is FAST["cpu"]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_kernel_of_this_gpu_agrees(dtype: torch.dtype) -> None:
    assert agrees(FAST["cuda"], torch.device("cuda"), dtype)


class Wrong(Flash):
    """Right values, wrong gradients."""

    def backward(self, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = super().backward(*arguments)
        return query, key, value * 1.1


class Missing(Flash):
    """As where a build of torch has no such kernel."""

    def forward(self, *arguments: Any) -> tuple[Tensor, Tensor]:
        raise NotImplementedError("no kernel for this\nand more")


@pytest.mark.parametrize(("kernel", "reason"), [(Wrong(), "something else"), (Missing(), "no kernel for this")])
def test_without_a_kernel_it_is_computed_plainly_and_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kernel: Kernel, reason: str
) -> None:
    monkeypatch.setitem(FAST, "cpu", kernel)
    for _ in range(2):
        assert kernel_of("cpu", torch.float32) is PLAIN
    assert caplog.text.count(reason) == 1
    assert kernel_of("meta", torch.float32) is PLAIN
