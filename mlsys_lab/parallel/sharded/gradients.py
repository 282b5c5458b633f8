"""ZeRO stage 2: gradients are summed to the rank that needs them while the backward pass goes on, and freed at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from mlsys_lab.comm import Rank
from mlsys_lab.comm.collectives.all_reduce import ring_steps
from mlsys_lab.comm.collectives.steps import InFlight, Steps
from mlsys_lab.parallel.buckets import BucketReducer
from mlsys_lab.parallel.data.averaging import GRADIENTS, broadcast_tensors, sync_untrained_states
from mlsys_lab.parallel.flat import FlatParameters
from mlsys_lab.parallel.sharded.optimizer import ShardedOptimizer
from mlsys_lab.parallel.sharded.transport import ZeroCollectives


class ShardedDDP(nn.Module):
    """A module of whose mean gradients each rank keeps only those of its shards of `optimizer`.

    All ranks begin with rank 0's parameters and buffers, and take its buffers again before each forward pass of
    training.
    Between `backward()` and the optimiser's step call `finish_gradient_synchronization()`; with several micro-batches
    after each of them, since no rank has room to add up the others' gradients. Parameters' own `grad` is None
    afterwards. In fairscale: `ShardedDataParallel`; in DeepSpeed: stage 2.
    """

    def __init__(self, module: nn.Module, group: Rank, optimizer: ShardedOptimizer) -> None:
        super().__init__()
        self.module, self._group, self._size, self._optimizer = module, group, group.size, optimizer
        sync_untrained_states(module, group)  # the optimizer has copied all else
        self._queue = BucketReducer([bucket for bucket, _ in optimizer.shards], lambda bucket: send_off(bucket, group))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module on this rank's part of the batch."""
        if self.training:
            broadcast_tensors(self.module.buffers(), self._group)
        return self.module(*args, **kwargs)

    def finish_gradient_synchronization(self) -> None:
        """Wait until this rank's shards have their mean gradients, added to those that they had."""
        for (_, total), (_, shard) in zip(self._queue.finish(), self._optimizer.shards, strict=True):
            self._optimizer.add_gradient(shard, total / self._size)


def send_off(
    bucket: FlatParameters, group: Rank, replicas: Rank | None = None, transport: ZeroCollectives | None = None
) -> InFlight[torch.Tensor]:
    """Start the reduce-scatter of a bucket's gradients, and free those of its parameters.

    transport: how they travel, as they are where that is None. With `replicas` an all-reduce follows of this rank's
    part among the ranks that keep the same part.
    """
    gradients = bucket.read_gradients()
    bucket.free_gradients()
    return InFlight(_sum_steps(gradients, group, replicas, transport or ZeroCollectives()))


def _sum_steps(
    gradients: torch.Tensor, group: Rank, replicas: Rank | None, transport: ZeroCollectives
) -> Steps[torch.Tensor]:
    part = yield from transport.reduce_scatter(group, gradients)
    return part if replicas is None else (yield from ring_steps(replicas, part, GRADIENTS))
