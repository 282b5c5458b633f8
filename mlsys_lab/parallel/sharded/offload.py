"""ZeRO-Offload (Ren et al., arXiv:2101.06840): the optimiser's states, and its update, are the host's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from mlsys_lab.parallel.sharded.optimizer import ShardedOptimizer


@dataclass
class OffloadTraffic:
    """Bytes that have crossed between a device and its host, each way."""

    down_bytes: int = 0
    up_bytes: int = 0


class OffloadedOptimizer(ShardedOptimizer):
    """A `ShardedOptimizer` whose shards lie in the host's memory, where they are updated.

    A step sends gradients of this rank's shards down, in the dtype that they have on the device, and new weights up in
    that of the parameters: with 16 bits 2 bytes a parameter each way, divided by the ranks. 32-bit masters and moments
    never cross. With `ShardedDDP` no rank keeps a whole gradient either. `crossings` counts; on a CPU the host is a
    second place in the same memory. Left out: pinned memory, copies and updates beside the device's work, and updates
    that are a step late (§5 of the paper). In DeepSpeed: `offload_optimizer`; in torch: `CPUOffloadPolicy` of
    `fully_shard`, which keeps weights there too.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.crossings = OffloadTraffic()
        super().__init__(*args, **kwargs)
        self.crossings = OffloadTraffic()  # of steps alone, not of how shards got there

    def _lower(self, array: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        self.crossings.down_bytes += array.nbytes
        return super()._lower(array.to("cpu", copy=True), dtype)

    def _lift(self, shard: nn.Parameter, like: torch.Tensor) -> torch.Tensor:
        narrow = super()._lift(shard, like)
        self.crossings.up_bytes += narrow.nbytes
        return narrow.to(like.device, copy=True)
