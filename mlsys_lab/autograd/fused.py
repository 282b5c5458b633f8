"""Operations on ATen's fused kernels, forward and backward, for models that train at the speed of torch.

Results and gradients are those of `mlsys_lab.autograd.ops`, where the formulas stand, up to rounding.
"""

from __future__ import annotations

from typing import Any

import torch

from mlsys_lab.autograd import nn
from mlsys_lab.autograd.base import Result, TensorBase, as_torch
from mlsys_lab.autograd.ops.network import check_affine
from mlsys_lab.autograd.storage import require_floating_point
from mlsys_lab.autograd.tensor import Tensor, differentiable

aten = torch.ops.aten


@differentiable
def gelu(a: TensorBase) -> Result:
    """Elementwise a·Φ(a), Φ the normal distribution function; one kernel in each direction."""
    x = require_floating_point("gelu", as_torch(a))
    return torch.nn.functional.gelu(x), (a, lambda g: aten.gelu_backward(g, x))


@differentiable
def layer_norm(a: TensorBase, weight: TensorBase, bias: TensorBase, eps: float = 1e-5) -> Result:
    """Layer norm over the last axis: a (..., C), weight and bias (C,); one kernel in each direction."""
    x = require_floating_point("layer_norm", as_torch(a))
    w, b = check_affine("layer_norm", x, weight, bias)
    out, mean, rstd = torch.native_layer_norm(x, x.shape[-1:], w, b, eps)
    latest: dict[str, Any] = {}  # the last incoming gradient, and what it gave: three edges share one call

    def gradients(g: torch.Tensor) -> Any:
        if latest.get("g") is not g:
            of_all = [True, True, True]
            latest["g"] = g
            latest["found"] = aten.native_layer_norm_backward(g, x, x.shape[-1:], mean, rstd, w, b, of_all)
        return latest["found"]

    return (
        out,
        (a, lambda g: gradients(g)[0]),
        (weight, lambda g: gradients(g)[1]),
        (bias, lambda g: gradients(g)[2]),
    )


class LayerNorm(nn.LayerNorm):
    """Layer normalisation on fused kernels: (..., C) -> (..., C)."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis to mean 0 and variance 1, then scale and shift it: (..., C) -> (..., C)."""
        return layer_norm(x, self.weight, self.bias, self.eps)
