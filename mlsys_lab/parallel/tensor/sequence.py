"""Sequence parallelism: between the divided products each rank has 1/p of the tokens (arXiv:2205.05198, §4.2.2).

An all-reduce is a reduce-scatter and an all-gather: with the norm between these two, it is of a slice of the sequence,
for as many bytes. Letters: B sequences, T tokens, D d_model, p ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from mlsys_lab.comm import Rank
from mlsys_lab.comm.collectives.scattered import all_gather_ring, reduce_scatter_ring
from mlsys_lab.errors import InputError
from mlsys_lab.parallel.tensor.regions import ACTIVATIONS


def split(x: torch.Tensor, group: Rank) -> torch.Tensor:
    """Keep this rank's tokens of an x that all ranks have: (B, T, D) -> (B, T/p, D). Backward, gradients are gathered.

    Raises InputError where the ranks cannot have equally many tokens.
    """
    part: torch.Tensor = _Split.apply(x, group)  # type: ignore[no-untyped-call]
    return part


def gather(x: torch.Tensor, group: Rank) -> torch.Tensor:
    """Put all ranks' tokens together: (B, T/p, D) -> (B, T, D). Backward, the ranks' gradients are summed, divided."""
    whole: torch.Tensor = _Gather.apply(x, group)  # type: ignore[no-untyped-call]
    return whole


def scatter(x: torch.Tensor, group: Rank) -> torch.Tensor:
    """Sum all ranks' partial x and keep this rank's tokens: (B, T, D) -> (B, T/p, D). Backward, gradients are gathered.

    Raises InputError where the ranks cannot have equally many tokens.
    """
    part: torch.Tensor = _Scatter.apply(x, group)  # type: ignore[no-untyped-call]
    return part


def sequence_parallel_linears(x: torch.Tensor, linears: Sequence[nn.Linear], group: Rank) -> list[torch.Tensor]:
    """Multiply all ranks' tokens by this rank's columns of several matrices: (B, T/p, D) -> (B, T, O/p) each.

    What is kept for the backward pass is this rank's tokens alone; they are gathered once more for the gradients of the
    weights. Forward one all-gather, backward another one and a reduce-scatter, however many matrices.
    """
    products = _GatheredProducts.apply(x, group, *(linear.weight for linear in linears))  # type: ignore[no-untyped-call]
    return [
        product if linear.bias is None else product + linear.bias
        for product, linear in zip(products, linears, strict=True)
    ]


class _Split(torch.autograd.Function):
    """A part forward, all parts' gradients backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Rank) -> torch.Tensor:
        _require_even(x, group)
        ctx.group = group
        return x.chunk(group.size, 1)[group.rank].clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor, None]:
        return _gather_tokens(gradients[0], ctx.group), None


class _Gather(torch.autograd.Function):
    """All parts forward, this rank's part of the summed gradients backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Rank) -> torch.Tensor:
        ctx.group = group
        return _gather_tokens(x, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor, None]:
        return _scatter_tokens(gradients[0], ctx.group), None


class _Scatter(torch.autograd.Function):
    """This rank's part of the sum forward, all parts' gradients backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Rank) -> torch.Tensor:
        ctx.group = group
        return _scatter_tokens(x, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor, None]:
        return _gather_tokens(gradients[0], ctx.group), None


class _GatheredProducts(torch.autograd.Function):
    """Products of gathered tokens, which are gathered again backward since they were not kept."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Rank, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.group = group
        ctx.save_for_backward(x, *weights)
        whole = _gather_tokens(x, group)
        return tuple(whole @ weight.T for weight in weights)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        whole = _gather_tokens(x, ctx.group).flatten(0, 1)
        d_whole = sum(gradient @ weight for gradient, weight in zip(gradients, weights, strict=True))
        d_weights = [gradient.flatten(0, 1).T @ whole for gradient in gradients]
        return _scatter_tokens(d_whole, ctx.group), None, *d_weights


def _gather_tokens(x: torch.Tensor, group: Rank) -> torch.Tensor:
    return torch.cat(all_gather_ring(group, x.contiguous(), ACTIVATIONS), 1)


def _scatter_tokens(x: torch.Tensor, group: Rank) -> torch.Tensor:
    _require_even(x, group)
    part = reduce_scatter_ring(group, x.transpose(0, 1), ACTIVATIONS)  # tokens first, so that a chunk is some of them
    return part.view(-1, x.shape[0], x.shape[2]).transpose(0, 1).contiguous()


def _require_even(x: torch.Tensor, group: Rank) -> None:
    if x.shape[1] % group.size:
        got = f"{x.shape[1]} over {group.size} ranks"
        raise InputError("tokens of a sequence cannot be divided evenly", got=got)
