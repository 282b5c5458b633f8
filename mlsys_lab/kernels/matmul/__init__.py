"""c = a·b: enough arithmetic for each number to be worth keeping close, and a ladder of places to keep it in."""

from __future__ import annotations

import torch

from mlsys_lab.kernels.operation import perform


def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The product by torch."""
    return a @ b


def matmul(a: torch.Tensor, b: torch.Tensor, *, language: str = "numba", step: str | None = None) -> torch.Tensor:
    """a·b of two matrices by a step of a language's `STEPS`; Triton's module has more to offer. Raises InputError.

    Without a step: the fastest that takes the operands.
    """
    if language == "cuda" and step is None:
        step = "tensor_cores" if getattr(a, "dtype", None) == torch.bfloat16 else "warp_tile"
    return perform("matmul", language, step, a, b)
