"""Transpose y = xᵀ: no arithmetic, so its speed depends on the order of loads and stores alone."""

from __future__ import annotations

import torch

from mlsys_lab.kernels.operation import perform


def reference(x: torch.Tensor) -> torch.Tensor:
    """Contiguous transpose of a matrix, computed by torch."""
    return x.T.contiguous()


def transpose(x: torch.Tensor, *, language: str = "numba", step: str | None = None) -> torch.Tensor:
    """Transpose (n, m) of a contiguous matrix (m, n), by a step of a language's `STEPS`, by default the last.

    Raises InputError for another tensor, or an unknown language or step.
    """
    return perform("transpose", language, step, x)
