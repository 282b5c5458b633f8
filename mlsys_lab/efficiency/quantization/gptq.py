"""Error-compensated rounding (GPTQ): later columns compensate the rounding error of earlier ones.

Frantar et al. 2022, GPTQ (arXiv:2210.17323), algorithm 1. Dimension letters: O outputs, I inputs, n tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from mlsys_lab.efficiency.quantization.layers import AffineGrid, Int4Linear, require_groups
from mlsys_lab.errors import InputError

DAMPING = 0.01
"""Fraction of its mean diagonal added to the diagonal of the Hessian, so that it is invertible (§3.3, step 3)."""


class Compensated(NamedTuple):
    """A layer with 4-bit weights, and each output's squared error (O,), summed over the calibration tokens.

    The error is that of the damped problem: tr (W - Ŵ) H (W - Ŵ)ᵀ, with H = `hessian(inputs)`. It is exact: the sum of
    the algorithm's own terms.
    """

    layer: Int4Linear
    error: torch.Tensor


def hessian(inputs: torch.Tensor) -> torch.Tensor:
    """Half the second derivative of a layer's squared output error, damped: (n, I) -> (I, I), float64.

    XᵀX, with 1 % of its mean diagonal added to the diagonal. InputError for inputs that are all zero.
    """
    x = inputs.detach().double()
    h = x.mT @ x
    if not h.any():
        raise InputError("calibration inputs are all zero", expected="activations of real text")
    return h + DAMPING * h.diagonal().mean() * torch.eye(len(h), dtype=h.dtype, device=h.device)


def compensate(
    weight: torch.Tensor, inputs: torch.Tensor, bias: torch.Tensor | None = None, *, group_size: int = 64
) -> Compensated:
    """Quantize weights (O, I) to 4 bits column by column, so that outputs on `inputs` (n, I) change little.

    Each column is rounded to nearest; its error, weighted by the inverse Hessian, is subtracted from the later columns.
    The `AffineGrid` of a group is chosen when its first column is reached. The error of a single weight may exceed half
    a scale. InputError if groups do not divide the inputs.
    """
    require_groups(weight, group_size)
    if inputs.ndim != 2 or inputs.shape[-1] != weight.shape[-1]:
        raise InputError("inputs of another layer", got=tuple(inputs.shape), expected=f"(n, {weight.shape[-1]})")
    inverse = torch.linalg.inv(hessian(inputs))
    factor = torch.linalg.cholesky(inverse, upper=True)  # (I, I): inverse = factorᵀ · factor
    remaining = weight.detach().double().clone()  # (O, I)
    grids, codes, error = [], [], torch.zeros_like(remaining[:, 0])
    for column in range(remaining.shape[-1]):
        if column % group_size == 0:
            grids.append(AffineGrid(remaining[:, column : column + group_size]))
        rounded = grids[-1].encode(remaining[:, column])  # (O,)
        scaled_error = (remaining[:, column] - grids[-1].decode(rounded, remaining[:, column])) / factor[column, column]
        remaining[:, column + 1 :] -= scaled_error[:, None] * factor[column, column + 1 :]
        codes.append(rounded)
        error += scaled_error.square()
    return Compensated(Int4Linear(torch.stack(codes, -1), grids, bias), error)
