"""The two ends of a region in which each rank has a part of the matrices: what is sent there, forward and backward.

Megatron's f and g (arXiv:1909.08053, §3): each is what the other one is backward.
"""

from __future__ import annotations

from typing import Any

import torch

from mlsys_lab.comm import Rank
from mlsys_lab.comm.collectives.all_reduce import ring

ACTIVATIONS = "activations"
"""The purpose with which the ledger counts messages of activations and of their gradients."""


def copy_to_tensor_parallel_region(x: torch.Tensor, group: Rank) -> torch.Tensor:
    """Begin a region: `x` as it is. Backward, the ranks' gradients of it are added up, for each has used it in part."""
    entered: torch.Tensor = _Enter.apply(x, group)  # type: ignore[no-untyped-call]
    return entered


def reduce_from_tensor_parallel_region(x: torch.Tensor, group: Rank) -> torch.Tensor:
    """End a region: the sum of all ranks' partial `x`. Backward, each rank's part gets the sum's gradient as it is."""
    total: torch.Tensor = _Leave.apply(x, group)  # type: ignore[no-untyped-call]
    return total


class _Enter(torch.autograd.Function):
    """Identity forward, sum over the ranks backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Rank) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor, None]:
        return ring(ctx.group, gradients[0], ACTIVATIONS), None


class _Leave(torch.autograd.Function):
    """Sum over the ranks forward, identity backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Rank) -> torch.Tensor:
        return ring(group, x, ACTIVATIONS)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor, None]:
        return gradients[0], None
