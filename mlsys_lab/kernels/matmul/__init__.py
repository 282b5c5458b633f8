"""c = a·b: enough arithmetic for each number to be worth keeping close, and a ladder of places to keep it in."""

from __future__ import annotations

import torch

from mlsys_lab.kernels.operation import steps_in


def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The product by torch."""
    return a @ b


def matmul(
    a: torch.Tensor, b: torch.Tensor, *, language: str = "numba", step: str = "register_tile_2d"
) -> torch.Tensor:
    """a·b of two matrices by a step of a language's `STEPS`; Triton's module has more to offer. Raises InputError."""
    product: torch.Tensor = steps_in("matmul", language).run(step, a, b)
    return product
