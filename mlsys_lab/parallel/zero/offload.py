"""ZeRO-Offload (Ren et al., arXiv:2101.06840): optimizer states and the update live on the host CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from mlsys_lab.parallel.zero.optimizer import ShardedOptimizer


@dataclass
class OffloadTraffic:
    """Bytes copied between a device and its host, in each direction."""

    device_to_host_bytes: int = 0
    host_to_device_bytes: int = 0


class OffloadedOptimizer(ShardedOptimizer):
    """A `ShardedOptimizer` whose shards and states are in host memory, where the update runs.

    A step copies gradients of this rank's shards to the host, in the dtype that they have on the device, and new
    weights back in the parameters' dtype: in 16 bits, 2 bytes per parameter each way, divided by the number of ranks.
    fp32 master weights and moments never leave the host. With `ShardedDDP` no rank keeps full gradients either, and
    gradients are copied once per micro-batch.
    `traffic` counts the bytes; for a model on the CPU, host memory is the same memory. Left out: pinned memory, copies
    and updates that overlap with computation, and one-step delayed updates (§5 of the paper). In DeepSpeed:
    `offload_optimizer`; in torch: `CPUOffloadPolicy` of `fully_shard`, which offloads weights too.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.traffic = OffloadTraffic()
        super().__init__(*args, **kwargs)
        self.traffic = OffloadTraffic()  # of steps only, not of the initial copy

    def _to_optimizer(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        self.traffic.device_to_host_bytes += tensor.nbytes
        return super()._to_optimizer(tensor.to("cpu", copy=True), dtype)

    def _to_model(self, shard: nn.Parameter, like: torch.Tensor) -> torch.Tensor:
        values = super()._to_model(shard, like)
        self.traffic.host_to_device_bytes += values.nbytes
        return values.to(like.device, copy=True)
