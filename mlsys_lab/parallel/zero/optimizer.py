"""ZeRO stages 1 and 2: optimizer states, then gradients too, sharded over the data-parallel ranks.

Stage 1 (`ShardedOptimizer`): gradients are reduce-scattered, each rank updates its shard, and weights are all-gathered.
Stage 2 (`ShardedDDP`): the reduce-scatters run in buckets during the backward pass and free the gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from mlsys_lab.comm import Rank
from mlsys_lab.comm.collectives.all_reduce import all_reduce
from mlsys_lab.comm.collectives.chunks import split_chunks
from mlsys_lab.comm.collectives.reduce_scatter import all_gather, reduce_scatter, reduce_scatter_steps
from mlsys_lab.comm.collectives.rooted import broadcast
from mlsys_lab.comm.collectives.steps import InFlight
from mlsys_lab.parallel.buckets import Bucket, BucketReducer, assign_buckets
from mlsys_lab.parallel.data.ddp import broadcast_tensors, sync_frozen_params_and_buffers
from mlsys_lab.parallel.tags import Tag


class ShardedOptimizer:
    """ZeRO stage 1: an optimizer whose states are sharded over `group`; rank i updates chunk i of each bucket.

    All ranks start from rank 0's parameters, frozen ones included; buffers are up to the module (`DDP`, `ShardedDDP`).

    params: parameters, or groups of them as torch's optimizers take ({"params": ..., "lr": ...}).
    optimizer_class: any elementwise optimizer, such as `torch.optim.AdamW`; it gets `options`.
    master_dtype: dtype of shards and states if not the parameters' own: float32 for bf16 weights.

    In torch: `ZeroRedundancyOptimizer`; in Megatron: distributed optimizer; in DeepSpeed: stage 1.
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
        self.bucket_shards: list[tuple[Bucket, nn.Parameter]] = []
        param_groups = []
        for given in _as_param_groups(params):
            broadcast_tensors([one for one in given["params"] if not one.requires_grad], group)
            shards = []
            for bucket in assign_buckets(given["params"], bucket_bytes):
                bucket.write_values(broadcast(group, bucket.read_values()))
                own = self._local_chunk(bucket.read_values())
                shards.append((bucket, nn.Parameter(self._to_optimizer(own, master_dtype or bucket.dtype))))
            param_groups.append(given | {"params": [shard for _, shard in shards]})
            self.bucket_shards += shards
        self.optimizer = optimizer_class(param_groups, **options)

    def zero_grad(self) -> None:
        """Free all gradients, of the parameters and of this rank's shards."""
        for bucket, shard in self.bucket_shards:
            shard.grad = None
            bucket.free_gradients()

    def reduce_gradients(self) -> None:
        """Reduce-scatter the gradients to the shards' means: half the bytes of an all-reduce.

        Call it between `backward()` and `step()`, unless `DDP` has averaged the gradients already.
        """
        for bucket, shard in self.bucket_shards:
            total = reduce_scatter(self._group, bucket.read_gradients(), Tag.GRADIENTS)
            shard.grad = self._to_optimizer(total / self._group.size, shard.dtype)

    def accumulate_gradient(self, shard: nn.Parameter, gradient: torch.Tensor) -> None:
        """Add a mean gradient to a shard's gradient, in the shard's dtype and on its device."""
        own = self._to_optimizer(gradient, shard.dtype)
        shard.grad = own if shard.grad is None else shard.grad + own

    def step(self) -> None:
        """Update this rank's shards, then all-gather the weights: each rank sends (p - 1)/p of their bytes.

        A shard without a gradient takes its chunk of the parameters' gradients, which must then be averaged already.
        """
        for bucket, shard in self.bucket_shards:
            if shard.grad is None:
                shard.grad = self._to_optimizer(self._local_chunk(bucket.read_gradients()), shard.dtype)
        self.optimizer.step()
        for bucket, shard in self.bucket_shards:
            shard.grad = None
            own = self._to_model(shard, bucket.parameters[0])
            bucket.write_values(torch.cat(all_gather(self._group, own, Tag.WEIGHTS)))

    def _to_optimizer(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Convert from the model's dtype and device to the optimizer's."""
        return tensor.to(dtype)

    def _to_model(self, shard: nn.Parameter, like: torch.Tensor) -> torch.Tensor:
        """Convert a shard's new values to the dtype and device of the model's parameters."""
        return shard.detach().to(like.dtype)

    def _local_chunk(self, flat: torch.Tensor) -> torch.Tensor:
        return split_chunks(flat, self._group.size)[self._group.rank].clone()


class ShardedDDP(nn.Module):
    """ZeRO stage 2: a module whose gradients are reduce-scattered to the shards of `optimizer` during `backward()`.

    Otherwise as `DDP`: all ranks start from rank 0's parameters and buffers, and take its buffers again before each
    forward pass in training mode. Call `finish_gradient_synchronization()` between `backward()` and the optimizer's
    step, and with several micro-batches after each of them, since no rank can accumulate gradients that it does not
    keep. The parameters' own `grad` is None afterwards. In fairscale: `ShardedDataParallel`; in DeepSpeed: stage 2.
    """

    def __init__(self, module: nn.Module, group: Rank, optimizer: ShardedOptimizer) -> None:
        super().__init__()
        self.module, self._group, self._size, self._optimizer = module, group, group.size, optimizer
        sync_frozen_params_and_buffers(module, group)  # the optimizer has broadcast the trained parameters
        self._reducer = BucketReducer(
            [bucket for bucket, _ in optimizer.bucket_shards],
            lambda bucket: InFlight(reduce_scatter_steps(group, pop_gradients(bucket), Tag.GRADIENTS)),
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module on this rank's part of the batch."""
        if self.training:
            broadcast_tensors(self.module.buffers(), self._group)
        return self.module(*args, **kwargs)

    def finish_gradient_synchronization(self) -> None:
        """Wait until this rank's shards have their mean gradients, added to those that they already had."""
        for (_, total), (_, shard) in zip(self._reducer.finish(), self._optimizer.bucket_shards, strict=True):
            self._optimizer.accumulate_gradient(shard, total / self._size)


def pop_gradients(bucket: Bucket) -> torch.Tensor:
    """Pop a bucket's gradients: return them flat, and free those of its parameters."""
    gradients = bucket.read_gradients()
    bucket.free_gradients()
    return gradients


def optimizer_state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of an optimizer's states on this rank, such as Adam's two moments; step counters are not counted."""
    tensors = (value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value))
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor.ndim)


def clip_grad_norm(
    shards: Iterable[nn.Parameter],
    max_norm: float,
    group: Rank,
    masks: Iterable[torch.Tensor] | None = None,
) -> float:
    """Scale sharded gradients so that their norm over all ranks is at most `max_norm`; return the norm before scaling.

    Each rank's own norm would scale its shard by a different factor. Costs one scalar all-reduce. Shards of a
    `ShardedOptimizer` have gradients after `reduce_gradients`. masks: one tensor per shard, of its shape: 1 on
    exactly one of the ranks that hold an element, 0 on the others.
    """
    given = list(shards)
    own_masks = [torch.ones(())] * len(given) if masks is None else masks
    total = torch.zeros((), dtype=torch.float64, device=group.device)  # a rank may have no gradient at all
    for shard, mask in zip(given, own_masks, strict=True):
        if shard.grad is not None:
            total += (shard.grad.double().square() * mask.to(shard.grad.device)).sum().to(group.device)
    norm = math.sqrt(all_reduce(group, total.reshape(1), Tag.GRAD_NORM).item())
    if norm > max_norm:
        for shard in given:
            if shard.grad is not None:
                shard.grad.mul_(max_norm / norm)
    return norm


def _as_param_groups(params: Iterable[Any]) -> list[dict[str, Any]]:
    given = list(params)
    groups = given if given and isinstance(given[0], dict) else [{"params": given}]
    return [group | {"params": list(group["params"])} for group in groups]
