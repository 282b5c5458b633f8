"""Matrix product c = a·b: enough arithmetic for each number to be worth keeping close, and a ladder of places."""

from __future__ import annotations

import torch

from mlsys_lab.kernels.operation import perform


def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Matrix product a·b, computed by torch."""
    return a @ b


def matmul(a: torch.Tensor, b: torch.Tensor, *, language: str = "numba", step: str | None = None) -> torch.Tensor:
    """Matrix product (M, K) · (K, N) -> (M, N) by a step of a language's `STEPS`; Triton's module has more options.

    Without a step: the fastest that takes the operands. Raises InputError for operands that do not fit each other or
    the step, and for a language or step that there is not.
    """
    if language == "cuda" and step is None:
        step = "tensor_cores" if getattr(a, "dtype", None) == torch.bfloat16 else "warp_tile"
    return perform("matmul", language, step, a, b)
