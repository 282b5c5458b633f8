"""Sum of a tensor: one addition per element, so memory-bound."""

from __future__ import annotations

import torch

from mlsys_lab.kernels.operation import perform


def reference(x: torch.Tensor) -> torch.Tensor:
    """Sum of a tensor as a 0-dimensional tensor, computed by torch."""
    return x.sum()


def total(x: torch.Tensor, *, language: str = "numba", step: str | None = None) -> torch.Tensor:
    """Sum of a contiguous tensor, 0 if empty, by a step of a language's `STEPS`, by default the last.

    Raises InputError for another tensor, or an unknown language or step.
    """
    return perform("reduction", language, step, x)
