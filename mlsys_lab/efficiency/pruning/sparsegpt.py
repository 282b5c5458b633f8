"""SparseGPT: prune column by column; later columns compensate what a pruned weight did to the outputs.

Frantar and Alistarh 2023, SparseGPT (arXiv:2301.00774), algorithm 1. Dimension letters: O outputs, I inputs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from mlsys_lab.efficiency.pruning.masks import (
    Density,
    keep_fraction,
    require_density,
    require_finite,
    require_groups,
    two_four_mask,
)
from mlsys_lab.efficiency.quantization.gptq import DAMPING, inverse_factor
from mlsys_lab.errors import InputError

BLOCK_SIZE = 128
"""Columns whose mask is chosen at once, by weights that are compensated up to there (§3.3)."""


class Pruned(NamedTuple):
    """Compensated weights (O, I), 0 where pruned, and their mask, bool (O, I)."""

    weight: torch.Tensor
    mask: torch.Tensor


@torch.no_grad()
def sparsegpt(
    weight: torch.Tensor,
    hessian: torch.Tensor,
    density: Density,
    *,
    block_size: int = BLOCK_SIZE,
    damping: float = DAMPING,
) -> Pruned:
    """Prune weights (O, I) so that the layer's outputs on the inputs of a Hessian (I, I) change little.

    The Hessian is `quantization.gptq.hessian`; `damping` times the mean of its diagonal is added. A mask keeps the
    largest saliencies weight² / [H⁻¹]ⱼⱼ, where H⁻¹ is of the columns from j on: a fraction `density` of each
    `block_size` columns, or two of every four inputs. Computed in fp64; the result has the dtype of the weights.
    InputError for weights or a Hessian that are not finite, a Hessian of another layer or a singular one, and inputs
    that 4 does not divide for "2:4".
    """
    require_finite("weights", weight)
    outputs, inputs = weight.shape
    if hessian.shape != (inputs, inputs):
        raise InputError("Hessian of another layer", got=tuple(hessian.shape), expected=(inputs, inputs))
    require_finite("entries of the Hessian", hessian)
    if density == "2:4":
        require_groups(inputs, 2, 4)
        block_size, chosen_together = BLOCK_SIZE, 4
    else:
        require_density(density)
        chosen_together = block_size
    factor = inverse_factor(hessian.double(), damping)
    remaining = weight.double().clone()
    mask = torch.ones_like(weight, dtype=torch.bool)
    for start in range(0, inputs, block_size):
        end = min(start + block_size, inputs)
        errors = remaining.new_empty(outputs, end - start)
        for column in range(start, end):
            if (column - start) % chosen_together == 0:
                group = slice(column, min(column + chosen_together, end))
                mask[:, group] = _choose(remaining[:, group] / factor.diagonal()[group], density)
            error = remaining[:, column].masked_fill(mask[:, column], 0) / factor[column, column]  # (O,)
            remaining[:, column:end] -= error[:, None] * factor[column, column:end]
            errors[:, column - start] = error
        remaining[:, end:] -= errors @ factor[start:end, end:]
    return Pruned(remaining.masked_fill(~mask, 0).to(weight.dtype), mask)


def _choose(salient: torch.Tensor, density: Density) -> torch.Tensor:
    """Mask of a group of columns (O, C) by the roots of their saliencies."""
    if density == "2:4":
        return two_four_mask(salient.abs())
    return keep_fraction(salient.abs().flatten(), density).view_as(salient)
