"""Matrix product c = a·b, from a naive kernel to tiles in shared memory, registers and tensor cores."""

from __future__ import annotations

import torch

from mlsys_lab.kernels.operation import perform


def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Matrix product a·b, computed by torch."""
    return a @ b


def matmul(a: torch.Tensor, b: torch.Tensor, *, language: str = "numba", step: str | None = None) -> torch.Tensor:
    """Matrix product (M, K) · (K, N) -> (M, N) by a step of a language's `STEPS`.

    Without a step, the fastest one that takes the operands. Raises InputError for operands that do not match each other
    or the step, and for an unknown language or step.
    """
    if language == "cuda" and step is None:
        step = "tensor_cores" if getattr(a, "dtype", None) == torch.bfloat16 else "warp_tile"
    return perform("matmul", language, step, a, b)
