"""Layer norm (Ba, Kiros, Hinton, 2016) and RMS norm (Zhang and Sennrich, 2019) along the last dimension."""

from __future__ import annotations

import torch

from mlsys_lab.errors import InputError


def reference_layer_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float = 1e-5
) -> torch.Tensor:
    """Layer norm along the last dimension in torch, one operation after another, each a pass over memory."""
    centred = x.float() - x.float().mean(-1, keepdim=True)
    x_hat = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    return (x_hat * weight.float() + bias.float()).to(x.dtype)


def reference_rms_norm(x: torch.Tensor, weight: torch.Tensor, *, eps: float = 1e-6) -> torch.Tensor:
    """RMS norm along the last dimension in torch, one operation after another, each a pass over memory."""
    x_hat = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)
    return (x_hat * weight.float()).to(x.dtype)


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float = 1e-5, step: str = "persistent"
) -> torch.Tensor:
    """Layer norm (x − mean) / √(variance + eps) · weight + bias for (…, D), (D,), (D,), differentiable.

    `step` is one of Triton's `STEPS`. Computed in float32, given back in x's dtype. Raises
    InputError for arguments that no step takes: shapes, dtypes, devices, rows too wide, no bias.
    """
    from mlsys_lab.kernels.norms import triton_steps

    if bias is None:
        raise InputError("layer norm needs a bias", got="None", expected="(D,)", help="rms_norm has none")
    return triton_steps.norm(x, weight, bias, eps=eps, step=step)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, *, eps: float = 1e-6, step: str = "persistent") -> torch.Tensor:
    """RMS norm x / √(mean of x² + eps) · weight for (…, D), (D,), differentiable; otherwise as `layer_norm`."""
    from mlsys_lab.kernels.norms import triton_steps

    return triton_steps.norm(x, weight, None, eps=eps, step=step)
