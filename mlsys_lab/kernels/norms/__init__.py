"""Layer norm (Ba, Kiros, Hinton, 2016) and RMS norm (Zhang and Sennrich, 2019) along the last dimension.

reference   torch, one operation after another, each a pass over memory
fused       one kernel forward; one backward, and one that adds up the weights' gradients
"""

from __future__ import annotations

import torch

from mlsys_lab.kernels.arguments import alike, known_step, of_shape
from mlsys_lab.kernels.row_blocks import DTYPES, rows_and_width

STEPS = {
    "reference": "torch: means, differences, roots and products, each a pass over memory",
    "fused": "Triton: rows in registers, programs that stay and add up their share of the weights' gradients",
}


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float = 1e-5, step: str = "fused"
) -> torch.Tensor:
    """(x − mean) / √(variance + eps) · weight + bias for (…, D), (D,), (D,), differentiable, by one of `STEPS`.

    Computed in float32, given back in x's dtype. Raises InputError.
    """
    _check(step, x=x, weight=weight, bias=bias)
    if step == "reference":
        centred = x.float() - x.float().mean(-1, keepdim=True)
        x_hat = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
        return (x_hat * weight.float() + bias.float()).to(x.dtype)
    from mlsys_lab.kernels.norms import triton_steps

    return triton_steps.layer_norm(x, weight, bias, eps)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, *, eps: float = 1e-6, step: str = "fused") -> torch.Tensor:
    """x / √(mean of x² + eps) · weight for (…, D) and (D,), differentiable, by one of `STEPS`.

    Computed in float32, given back in x's dtype. Raises InputError.
    """
    _check(step, x=x, weight=weight)
    if step == "reference":
        x_hat = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)
        return (x_hat * weight.float()).to(x.dtype)
    from mlsys_lab.kernels.norms import triton_steps

    return triton_steps.rms_norm(x, weight, eps)


def _check(step: str, **tensors: torch.Tensor) -> None:
    known_step(step, STEPS)
    alike(DTYPES, **tensors)
    _, width = rows_and_width(tensors["x"])
    of_shape((width,), **{name: tensor for name, tensor in tensors.items() if name != "x"})
