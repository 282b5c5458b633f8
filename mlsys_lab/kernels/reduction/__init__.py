"""The sum of a tensor: one addition a number, so that at best it takes as long as reading the tensor once."""

from __future__ import annotations

import torch

from mlsys_lab.kernels.operation import perform


def reference(x: torch.Tensor) -> torch.Tensor:
    """Sum of a tensor as a tensor of no dimension, computed by torch."""
    return x.sum()


def total(x: torch.Tensor, *, language: str = "numba", step: str | None = None) -> torch.Tensor:
    """Sum of a contiguous tensor, 0 if empty, by a step of a language's `STEPS` (by default the last). InputError."""
    return perform("reduction", language, step, x)
