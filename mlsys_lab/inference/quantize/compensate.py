"""Rounding that looks at the layer's inputs: what one column's rounding breaks, the columns after it mend.

Frantar et al. 2022, GPTQ (arXiv:2210.17323), algorithm 1. Dimension letters: O outputs, I inputs, n tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from mlsys_lab.errors import InputError
from mlsys_lab.inference.quantize.layers import Grid, Int4Linear, require_groups

DAMPING = 0.01
"""Share of the mean diagonal that is added to the Hessian's, so that it can be inverted (§3.3, step 3)."""


class Compensated(NamedTuple):
    """A layer with 4-bit weights, and each output's squared error (O,), summed over the tokens of calibration.

    The error is of the damped problem: tr (W - Ŵ) H (W - Ŵ)ᵀ, where `hessian(inputs)` is H. It is not estimated: the
    algorithm's own terms add up to it.
    """

    layer: Int4Linear
    error: torch.Tensor


def hessian(inputs: torch.Tensor) -> torch.Tensor:
    """Second derivative of a layer's squared output error by its weights, halved and damped: (n, I) -> (I, I), float64.

    XᵀX, with 1 % of its mean diagonal added to the diagonal. InputError for inputs that are all zero.
    """
    x = inputs.detach().double()
    h = x.mT @ x
    if not h.any():
        raise InputError("calibration inputs are all zero", expected="activations of real text")
    return h + DAMPING * h.diagonal().mean() * torch.eye(len(h), dtype=h.dtype, device=h.device)


def compensate(
    weight: torch.Tensor, inputs: torch.Tensor, bias: torch.Tensor | None = None, *, group: int = 64
) -> Compensated:
    """Round weights (O, I) to 4 bits column by column, so that outputs on `inputs` (n, I) change little.

    Each column is rounded to the nearest; its error, times what the inverse Hessian says, is taken off the columns that
    are still to come. A group's `Grid` is that of its weights as they are when their turn comes. A single weight may
    be off by more than half a step. InputError if groups do not divide the inputs.
    """
    require_groups(weight, group)
    if inputs.ndim != 2 or inputs.shape[-1] != weight.shape[-1]:
        raise InputError("inputs of another layer", got=tuple(inputs.shape), expected=f"(n, {weight.shape[-1]})")
    inverse = torch.linalg.inv(hessian(inputs))
    factor = torch.linalg.cholesky(inverse, upper=True)  # (I, I): inverse = factorᵀ · factor
    left = weight.detach().double().clone()  # (O, I)
    grids, codes, error = [], [], torch.zeros_like(left[:, 0])
    for column in range(left.shape[-1]):
        if column % group == 0:
            grids.append(Grid(left[:, column : column + group]))
        rounded = grids[-1].encode(left[:, column])  # (O,)
        wrong = (left[:, column] - grids[-1].decode(rounded, left[:, column])) / factor[column, column]
        left[:, column + 1 :] -= wrong[:, None] * factor[column, column + 1 :]
        codes.append(rounded)
        error += wrong.square()
    return Compensated(Int4Linear(torch.stack(codes, -1), grids, bias), error)
