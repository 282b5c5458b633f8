"""Matrix products: one matrix, batches of them, vectors on either side."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch

from mlsys_lab.autograd.base import Result, TensorBase, as_torch
from mlsys_lab.autograd.ops.broadcasting import apply_binary, raise_operand_error, unbroadcast


def matmul(a: Any, b: Any) -> Result:
    """a @ b by numpy's rules: (..., n, k) @ (..., k, m) -> (..., n, m), leading axes broadcast, a vector is a row on
    the left and a column on the right. Forward 2·n·k·m FLOPs a matrix, backward twice that.

    For matrices ∂a = g @ bᵀ and ∂b = aᵀ @ g; vectors are made matrices first, and broadcast batches are summed over.
    """
    out, x, y, shape_a, shape_b = apply_binary(operator.matmul, a, b)

    def as_matrix(g: torch.Tensor) -> torch.Tensor:  # (..., n, m): axes that a vector operand took out are put back
        g = g.unsqueeze(-1) if len(shape_b) == 1 else g
        return g.unsqueeze(-2) if len(shape_a) == 1 else g

    def matmul_left(g: torch.Tensor) -> torch.Tensor:
        y_t = y.unsqueeze(0) if len(shape_b) == 1 else y.mT  # (..., m, k)
        grad = as_matrix(g) @ y_t  # (..., n, k)
        return unbroadcast(grad, shape_a) if len(shape_a) > 1 else unbroadcast(grad.squeeze(-2), shape_a)

    def matmul_right(g: torch.Tensor) -> torch.Tensor:
        g = as_matrix(g)
        if len(shape_b) == 2 and len(shape_a) > 2:  # one product over all rows, not a batch of products to be summed
            return _rows(x).mT @ _rows(g)
        x_t = x.unsqueeze(1) if len(shape_a) == 1 else x.mT  # (..., k, n)
        grad = x_t @ g  # (..., k, m)
        return unbroadcast(grad, shape_b) if len(shape_b) > 1 else unbroadcast(grad.squeeze(-1), shape_b)

    return out, (a, matmul_left), (b, matmul_right)


def linear(x: TensorBase, weight: TensorBase, bias: TensorBase | None = None) -> Result:
    """x @ weightᵀ + bias in one operation. x: (..., i), weight: (o, i), bias: (o,) -> (..., o).

    All leading axes of x are rows of one matrix, so each gradient is one product: 3 × 2·rows·i·o FLOPs in all.
    """
    x_data, w, b = as_torch(x), as_torch(weight), None if bias is None else as_torch(bias)
    try:
        out = torch.nn.functional.linear(x_data, w, b)
    except RuntimeError as problem:
        raise_operand_error(
            "linear", problem, x_data, w, *([] if b is None else [b]), expected="(..., i), (o, i) and (o,)"
        )
    return (
        out,
        (x, lambda g: g @ w),
        (weight, lambda g: _rows(g).mT @ _rows(x_data)),
        (bias, lambda g: _rows(g).sum(0)),
    )


def _rows(x: torch.Tensor) -> torch.Tensor:
    """Flatten all leading axes into one: (..., n) -> (rows, n). A length of -1 would be ambiguous for empty tensors."""
    return x if x.ndim == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
