"""Projections for decoding: weights laid out for few rows at a time, each with its adapter within it.

A product with 16 rows is bound by reading the weights, and half of its time goes into laying them out for the kernel.
They change once per update, so they are laid out once per update.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from workbench.agent.kernels import ROWS, onednn_dtypes
from workbench.agent.llama import Projection

Linear = Callable[[Tensor, Tensor | None], Tensor]
"""(inputs [R, in], bias) → [R, out]."""


def _has_layout(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype in onednn_dtypes()


def laid_out(weight: Tensor) -> Linear:
    """The product with a copy of `weight` [out, in] in oneDNN's layout; with itself where there is none."""
    if not _has_layout(weight):
        return lambda inputs, bias: functional.linear(inputs, weight, bias)
    operators = torch.ops.mkldnn
    layout = operators._reorder_linear_weight(weight.contiguous(), ROWS)
    return lambda inputs, bias: operators._linear_pointwise(inputs, layout, bias, "none", [], "")


class Sampled:
    """A projection as it is now: `refresh` takes over new weights.

    Weights that are laid out anew are a copy, and the adapter goes into it. In fp32 it is added, exactly to rounding.
    In bf16 that would keep only what of it is above 1/256 of a weight, so its A is a small product of its own, and its
    B is appended to the columns of the weight. Weights without a layout are not copied: A and B are beside them.
    """

    def __init__(self, projection: Projection) -> None:
        self.projection = projection
        self._down: Linear | None = None
        self._up: Tensor | None = None
        self.refresh()

    def refresh(self) -> None:
        projection = self.projection
        weight, self.bias, self._down, self._up = projection.weight(), projection.bias(), None, None
        if adapter := projection.adapter():
            down, up = adapter
            if not _has_layout(weight):
                self._down, self._up = laid_out(down), up
            elif weight.dtype == torch.float32:
                weight = torch.addmm(weight, up, down)
            else:
                weight, self._down = torch.cat([weight, up], 1), laid_out(down)
        self._linear = laid_out(weight)

    def __call__(self, inputs: Tensor) -> Tensor:
        if self._down is None:
            return self._linear(inputs, self.bias)
        low = self._down(inputs, None)
        if self._up is None:
            return self._linear(torch.cat([inputs, low], -1), self.bias)
        return torch.addmm(self._linear(inputs, self.bias), low, self._up.T)
