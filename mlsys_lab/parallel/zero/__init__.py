"""ZeRO (Rajbhandari et al., arXiv:1910.02054): data-parallel ranks shard optimizer states, gradients and weights."""

from mlsys_lab.parallel.zero.fsdp import FSDP, FSDPCollectives
from mlsys_lab.parallel.zero.offload import OffloadedOptimizer
from mlsys_lab.parallel.zero.optimizer import ShardedDDP, ShardedOptimizer, clip_grad_norm, optimizer_state_bytes
from mlsys_lab.parallel.zero.quantized import Int8Collectives

__all__ = [
    "FSDP",
    "FSDPCollectives",
    "Int8Collectives",
    "OffloadedOptimizer",
    "ShardedDDP",
    "ShardedOptimizer",
    "clip_grad_norm",
    "optimizer_state_bytes",
]
