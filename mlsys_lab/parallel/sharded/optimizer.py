"""ZeRO stage 1: each rank keeps the optimiser's states of its share of the parameters, updates it and tells the others.

Psi is the number of parameters' bytes, p the number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from mlsys_lab.comm import Rank
from mlsys_lab.comm.collectives.all_reduce import ring
from mlsys_lab.comm.collectives.chunks import split_chunks
from mlsys_lab.comm.collectives.rooted import broadcast_tree
from mlsys_lab.comm.collectives.scattered import all_gather_ring, reduce_scatter_ring
from mlsys_lab.parallel.data.averaging import GRADIENTS, broadcast_tensors
from mlsys_lab.parallel.flat import FlatParameters, assign_buckets

WEIGHTS = "weights"
"""The purpose with which the ledger counts messages of weights."""
NORM = "norm"
"""The purpose with which the ledger counts messages of the gradients' norm."""


class ShardedOptimizer:
    """An optimiser whose states are divided over the ranks of `group`: of each bucket rank i has chunk i.

    All ranks begin with rank 0's parameters, those that are not trained among them; buffers are the module's affair
    (`DDP`, `ShardedDDP`).

    params: parameters, or groups of them as torch's optimisers take ({"params": ..., "lr": ...}).
    optimizer_class: any that treats each element by itself, such as `torch.optim.AdamW`; `options` go to it.
    master_dtype: what the shards are kept and updated in where it is not the parameters' own dtype: float32 for bf16
    weights. In torch: `ZeroRedundancyOptimizer`; in DeepSpeed: stage 1.
    """

    def __init__(
        self,
        params: Iterable[Any],
        optimizer_class: type[torch.optim.Optimizer],
        group: Rank,
        *,
        bucket_bytes: float = float("inf"),
        master_dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        self._group = group
        self.shards: list[tuple[FlatParameters, nn.Parameter]] = []
        param_groups = []
        for given in _as_groups(params):
            broadcast_tensors([one for one in given["params"] if not one.requires_grad], group)
            shards = []
            for bucket in assign_buckets(given["params"], bucket_bytes):
                bucket.write_values(broadcast_tree(group, bucket.read_values()))
                own = self._chunk(bucket.read_values())
                shards.append((bucket, nn.Parameter(self._lower(own, master_dtype or bucket.dtype))))
            param_groups.append(given | {"params": [shard for _, shard in shards]})
            self.shards += shards
        self.optimizer = optimizer_class(param_groups, **options)

    def zero_grad(self) -> None:
        """Forget all gradients, of the parameters and of this rank's shards."""
        for bucket, shard in self.shards:
            shard.grad = None
            bucket.free_gradients()

    def reduce_gradients(self) -> None:
        """Give each rank the mean gradients of its shards: a reduce-scatter, half of the bytes of an all-reduce.

        Call it between `backward()` and `step()`, unless gradients have been averaged already (by `DDP`).
        """
        for bucket, shard in self.shards:
            total = reduce_scatter_ring(self._group, bucket.read_gradients(), GRADIENTS)
            shard.grad = self._lower(total / self._group.size, shard.dtype)

    def add_gradient(self, shard: nn.Parameter, gradient: torch.Tensor) -> None:
        """Add a mean gradient to a shard's own, in the shard's dtype and where it lies."""
        lowered = self._lower(gradient, shard.dtype)
        shard.grad = lowered if shard.grad is None else shard.grad + lowered

    def step(self) -> None:
        """Update this rank's shards, then gather everybody's weights: Psi·(p - 1)/p bytes sent.

        Shards without a gradient of their own take theirs from the parameters, which must have been averaged.
        """
        for bucket, shard in self.shards:
            if shard.grad is None:
                shard.grad = self._lower(self._chunk(bucket.read_gradients()), shard.dtype)
        self.optimizer.step()
        for bucket, shard in self.shards:
            shard.grad = None
            own = self._lift(shard, bucket.parameters[0])
            bucket.write_values(torch.cat(all_gather_ring(self._group, own, WEIGHTS)))

    def _lower(self, array: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """What the optimiser takes of the device's array, in its dtype."""
        return array.to(dtype)

    def _lift(self, shard: nn.Parameter, like: torch.Tensor) -> torch.Tensor:
        """A shard's new values as the device's parameters have them."""
        return shard.detach().to(like.dtype)

    def _chunk(self, flat: torch.Tensor) -> torch.Tensor:
        return split_chunks(flat, self._group.size)[self._group.rank].clone()


def optimizer_state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of an optimiser's states on this rank, such as Adam's two moments; step counters are not counted."""
    tensors = (value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value))
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor.ndim)


def clip_grad_norm(
    shards: Iterable[nn.Parameter],
    max_norm: float,
    group: Rank,
    counts: Iterable[torch.Tensor] | None = None,
) -> float:
    """Scale gradients that are divided over the ranks so that their norm is at most `max_norm`, and return that norm.

    The norm is of all ranks' shards together: each rank's own is another number, and would scale its shard by another
    factor. Costs one all-reduce of a number. Shards of `ShardedOptimizer` have gradients after `reduce_gradients`.

    counts: for each shard what its elements count, of its shape: 0 for those that another rank of the group has too.
    """
    given = list(shards)
    weights = [torch.ones(())] * len(given) if counts is None else list(counts)
    total = torch.zeros((), dtype=torch.float64, device=group.device)  # a rank may have no gradient at all
    for shard, weight in zip(given, weights, strict=True):
        if shard.grad is not None:
            total += (shard.grad.double().square() * weight.to(shard.grad.device)).sum().to(group.device)
    norm = math.sqrt(ring(group, total.reshape(1), NORM).item())
    if norm > max_norm:
        for shard in given:
            if shard.grad is not None:
                shard.grad.mul_(max_norm / norm)
    return norm


def _as_groups(params: Iterable[Any]) -> list[dict[str, Any]]:
    given = list(params)
    groups = given if given and isinstance(given[0], dict) else [{"params": given}]
    return [group | {"params": list(group["params"])} for group in groups]
