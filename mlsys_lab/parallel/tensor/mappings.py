"""Communication at the boundaries of tensor- and sequence-parallel regions, each operation with its backward pass.

Tensor parallelism needs two conjugate operations, Megatron's f and g (arXiv:1909.08053, §3): identity forward with an
all-reduce backward, and the reverse. Sequence parallelism (arXiv:2205.05198, §4.2.2) replaces each all-reduce by a
reduce-scatter and an all-gather over tokens. The norms between the two then see only T/p tokens on each rank, for the
same number of bytes sent. Letters: B sequences, T tokens, D d_model, p ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from mlsys_lab.comm import Rank
from mlsys_lab.comm.collectives.all_reduce import all_reduce
from mlsys_lab.comm.collectives.reduce_scatter import all_gather, reduce_scatter
from mlsys_lab.errors import InputError
from mlsys_lab.parallel.tags import Tag


def copy_to_tensor_parallel_region(x: torch.Tensor, group: Rank) -> torch.Tensor:
    """Return `x` unchanged; backward, all-reduce its gradient, since each rank used `x` with its own weights only."""
    copied: torch.Tensor = _CopyToTensorParallelRegion.apply(x, group)  # type: ignore[no-untyped-call]
    return copied


def reduce_from_tensor_parallel_region(x: torch.Tensor, group: Rank) -> torch.Tensor:
    """All-reduce the ranks' partial results `x`; backward, pass the gradient of the sum through unchanged."""
    total: torch.Tensor = _ReduceFromTensorParallelRegion.apply(x, group)  # type: ignore[no-untyped-call]
    return total


def scatter_to_sequence_parallel_region(x: torch.Tensor, group: Rank) -> torch.Tensor:
    """Keep this rank's tokens of a replicated `x`: (B, T, D) -> (B, T/p, D). Backward, all-gather the gradient.

    Raises InputError unless p divides T.
    """
    shard: torch.Tensor = _ScatterTokens.apply(x, group)  # type: ignore[no-untyped-call]
    return shard


def gather_from_sequence_parallel_region(x: torch.Tensor, group: Rank) -> torch.Tensor:
    """All-gather the ranks' tokens: (B, T/p, D) -> (B, T, D). Backward, reduce-scatter the gradient."""
    gathered: torch.Tensor = _GatherTokens.apply(x, group)  # type: ignore[no-untyped-call]
    return gathered


def reduce_scatter_to_sequence_parallel_region(x: torch.Tensor, group: Rank) -> torch.Tensor:
    """Sum partial results and keep this rank's tokens: (B, T, D) -> (B, T/p, D). Backward, all-gather the gradient.

    Raises InputError unless p divides T.
    """
    shard: torch.Tensor = _ReduceScatterTokens.apply(x, group)  # type: ignore[no-untyped-call]
    return shard


def sequence_parallel_linears(x: torch.Tensor, linears: Sequence[nn.Linear], group: Rank) -> list[torch.Tensor]:
    """All-gather tokens once and apply several column-parallel layers: (B, T/p, D) -> (B, T, O/p) for each layer.

    Only this rank's tokens are saved for the backward pass, which gathers them again to compute the weight gradients:
    one all-gather forward, one all-gather and one reduce-scatter backward, however many layers there are.
    """
    products = _AllGatherLinear.apply(x, group, *(linear.weight for linear in linears))  # type: ignore[no-untyped-call]
    return [
        product if linear.bias is None else product + linear.bias
        for product, linear in zip(products, linears, strict=True)
    ]


class _CopyToTensorParallelRegion(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Rank) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor, None]:
        return all_reduce(ctx.group, gradients[0], Tag.ACTIVATIONS), None


class _ReduceFromTensorParallelRegion(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Rank) -> torch.Tensor:
        return all_reduce(group, x, Tag.ACTIVATIONS)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor, None]:
        return gradients[0], None


class _ScatterTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Rank) -> torch.Tensor:
        _require_divisible(x, group)
        ctx.group = group
        return x.chunk(group.size, 1)[group.rank].clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor, None]:
        return _all_gather_tokens(gradients[0], ctx.group), None


class _GatherTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Rank) -> torch.Tensor:
        ctx.group = group
        return _all_gather_tokens(x, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor, None]:
        return _reduce_scatter_tokens(gradients[0], ctx.group), None


class _ReduceScatterTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Rank) -> torch.Tensor:
        ctx.group = group
        return _reduce_scatter_tokens(x, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor, None]:
        return _all_gather_tokens(gradients[0], ctx.group), None


class _AllGatherLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Rank, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.group = group
        ctx.save_for_backward(x, *weights)
        gathered = _all_gather_tokens(x, group)  # (B, T, D)
        return tuple(gathered @ weight.T for weight in weights)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        gathered = _all_gather_tokens(x, ctx.group).flatten(0, 1)  # (B·T, D)
        d_gathered = sum(gradient @ weight for gradient, weight in zip(gradients, weights, strict=True))
        d_weights = [gradient.flatten(0, 1).T @ gathered for gradient in gradients]
        return _reduce_scatter_tokens(d_gathered, ctx.group), None, *d_weights


def _all_gather_tokens(x: torch.Tensor, group: Rank) -> torch.Tensor:
    return torch.cat(all_gather(group, x.contiguous(), Tag.ACTIVATIONS), 1)


def _reduce_scatter_tokens(x: torch.Tensor, group: Rank) -> torch.Tensor:
    _require_divisible(x, group)
    shard = reduce_scatter(group, x.transpose(0, 1), Tag.ACTIVATIONS)  # tokens first, so that chunks are tokens
    return shard.view(-1, x.shape[0], x.shape[2]).transpose(0, 1).contiguous()


def _require_divisible(x: torch.Tensor, group: Rank) -> None:
    if x.shape[1] % group.size:
        got = f"{x.shape[1]} over {group.size} ranks"
        raise InputError("tokens of a sequence cannot be divided evenly", got=got)
