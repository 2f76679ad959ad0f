"""Projections for decoding: weights laid out for few rows at a time, each with its adapter within it.

A product with 16 rows is bound by reading the weights, and half of its time goes into laying them out for the kernel.
They change once per update, so they are laid out once per update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional

from workbench.agent.kernels import ROWS, onednn_dtypes
from workbench.agent.llama import Projection

Linear = Callable[[Tensor, Tensor | None], Tensor]
"""(inputs [R, in], bias) → [R, out]."""


def packed(weight: Tensor) -> Linear:
    """The product with a copy of `weight` [out, in], in oneDNN's layout where this build of torch has it."""
    if not (weight.device.type == "cpu" and weight.dtype in onednn_dtypes()):
        kept = weight.clone()
        return lambda inputs, bias: functional.linear(inputs, kept, bias)
    operators = torch.ops.mkldnn
    layout = operators._reorder_linear_weight(weight.contiguous(), ROWS)
    return lambda inputs, bias: operators._linear_pointwise(inputs, layout, bias, "none", [], "")


class Sampled:
    """A projection as it is now: `refresh` takes over new weights.

    In fp32 the adapter is added to the weights, exactly to rounding. In bf16 that would keep only what of it is above
    1/256 of a weight, so its A is a small product of its own, and its B is appended to the columns of the weight.
    """

    def __init__(self, projection: Projection) -> None:
        self.projection = projection
        self._base: Linear | None = None
        self._down: Linear | None = None
        self.refresh()

    def refresh(self) -> None:
        projection = self.projection
        weight, self.bias, self._down = projection.weight(), projection.bias(), None
        adapter = projection.adapter()
        if adapter is None:
            if self._base is None or not projection.frozen:
                self._base = packed(weight)
            self._linear = self._base
            return
        self._base, (down, up) = None, adapter
        if weight.dtype == torch.float32:
            weight = torch.addmm(weight, up, down)
        else:
            weight, self._down = torch.cat([weight, up], 1), packed(down)
        self._linear = packed(weight)

    def __call__(self, inputs: Tensor) -> Tensor:
        if self._down is not None:
            inputs = torch.cat([inputs, self._down(inputs, None)], -1)
        return self._linear(inputs, self.bias)


def fingerprint(parameters: Iterable[nn.Parameter], adapted: bool) -> tuple[object, ...]:
    """Changes when weights do, however they were changed: in place, by exchanging their data, or through `.data`."""
    weights = list(parameters)
    trained = [weight.detach() for weight in weights if weight.requires_grad]
    norms = torch.stack(torch._foreach_norm(trained)).tolist() if trained else []
    return adapted, *norms, *((weight.data_ptr(), weight._version) for weight in weights)
