"""Error-compensated rounding (GPTQ): later columns compensate the rounding error of earlier ones.

Frantar et al. 2022, GPTQ (arXiv:2210.17323), algorithm 1. Dimension letters: O outputs, I inputs, n tokens, G scales of
a row.
"""

from __future__ import annotations

import torch

from mlsys_lab.efficiency.formats import IntFormat
from mlsys_lab.efficiency.quantization.calibration import (
    Clipping,
    choose_scale,
    choose_tensor_scale,
    effective_scale,
)
from mlsys_lab.efficiency.quantization.scheme import Scheme
from mlsys_lab.efficiency.quantization.tensor import QuantizedTensor, from_codes, to_codes
from mlsys_lab.errors import InputError

DAMPING = 0.01
"""Fraction of its mean diagonal added to the diagonal of the Hessian, so that it is invertible (§3.3, step 3)."""
SMALLEST_PIVOT = 1e-12
"""Fraction of the Hessian's largest entry below which a column is a sum of earlier ones but for rounding."""
BLOCK = 128
"""Columns whose errors are subtracted from all later ones at once (§3.3, step 2)."""


def hessian(inputs: torch.Tensor) -> torch.Tensor:
    """Half the second derivative of a layer's squared output error by a row of weights, XᵀX: (n, I) -> (I, I), float64.

    InputError for inputs that are all zero, or that are not finite.
    """
    x = inputs.detach().double()
    h = x.mT @ x
    if not h.isfinite().all():
        raise InputError("calibration inputs are not finite", expected="activations of real text")
    if not h.any():
        raise InputError("calibration inputs are all zero", expected="activations of real text")
    return h


def gptq(
    weight: torch.Tensor,
    hessian: torch.Tensor,
    scheme: Scheme,
    *,
    method: Clipping = "max",
    act_order: bool = False,
    damping: float = DAMPING,
) -> QuantizedTensor:
    """Quantize weights (O, I) column by column, so that the outputs on the inputs of a Hessian (I, I) change little.

    Each column is rounded to nearest; its error, weighted by the inverse Hessian, is subtracted from the columns that
    follow. The scales of a group, chosen by `method`, are those of its weights when its first column is reached. With
    `act_order`, columns with large inputs come first, and all scales are chosen before. `damping` times the mean
    of the Hessian's diagonal is added to it. InputError for a Hessian of another shape, and a singular one.
    """
    inputs = weight.shape[-1]
    if hessian.shape != (inputs, inputs):
        raise InputError("Hessian of another layer", got=tuple(hessian.shape), expected=(inputs, inputs))
    tensor_scale = choose_tensor_scale(weight, scheme)
    scale, zero_point = choose_scale(weight, scheme, method, tensor_scale)
    order = hessian.diagonal().argsort(descending=True, stable=True) if act_order else torch.arange(inputs)
    factor = inverse_factor(hessian[order][:, order], damping)  # (I, I)
    remaining = weight.detach().double()[:, order]
    codes = torch.empty_like(remaining, dtype=torch.int8 if _is_signed(scheme) else torch.uint8)
    size = scheme.group_size or inputs
    block = size * max(1, BLOCK // size)  # whole groups, so that a group's scales see all updates
    for start in range(0, inputs, block):
        end = min(start + block, inputs)
        errors = torch.empty_like(remaining[:, start:end])
        for column in range(start, end):
            group = int(order[column]) // size if scheme.strategy == "group" else 0
            if scheme.strategy == "group" and not act_order and column % size == 0:
                chosen, zeros = choose_scale(remaining[:, column : column + size], scheme, method, tensor_scale)
                scale[:, group] = chosen[:, 0]
                if zero_point is not None and zeros is not None:
                    zero_point[:, group] = zeros[:, 0]
            step = effective_scale(scale[:, group], tensor_scale)
            shift = None if zero_point is None else zero_point[:, group]
            codes[:, column] = to_codes(remaining[:, column], step, shift, scheme.format)
            rounded = from_codes(codes[:, column], step, shift, scheme.format)  # (O,)
            errors[:, column - start] = (remaining[:, column] - rounded) / factor[column, column]
            later = slice(column + 1, end)
            remaining[:, later] -= errors[:, column - start, None] * factor[column, later]
        remaining[:, end:] -= errors @ factor[start:end, end:]
    return QuantizedTensor(codes[:, order.argsort()], scale, zero_point, scheme, tensor_scale)


def _is_signed(scheme: Scheme) -> bool:
    return isinstance(scheme.format, IntFormat) and scheme.format.signed


def inverse_factor(hessian: torch.Tensor, damping: float) -> torch.Tensor:
    """Upper triangular factor (I, I) with (damped Hessian)⁻¹ = factorᵀ · factor.

    The inverse Hessian of the columns from j on alone has factor[j, j]² on its diagonal for column j, and
    factor[j, j] · factor[j, j:] as its row. InputError for a singular Hessian.
    """
    added = damping * hessian.diagonal().mean() * torch.eye(len(hessian), dtype=hessian.dtype, device=hessian.device)
    lower, failed = torch.linalg.cholesky_ex(hessian + added)
    if failed or lower.diagonal().square().min() <= SMALLEST_PIVOT * hessian.diagonal().max():
        got, rank = f"damping {damping:g}", int(torch.linalg.matrix_rank(hessian, hermitian=True))
        raise InputError(
            f"singular Hessian, of rank {rank} for {len(hessian)} inputs",
            got=got,
            help="calibrate with more tokens, or raise the damping",
        )
    factor: torch.Tensor = torch.linalg.cholesky(torch.cholesky_inverse(lower), upper=True)
    return factor
