"""ZeRO (Rajbhandari et al., arXiv:1910.02054): data-parallel ranks divide optimiser states, gradients and weights."""

from mlsys_lab.parallel.sharded.fsdp import FSDP
from mlsys_lab.parallel.sharded.gradients import ShardedDDP
from mlsys_lab.parallel.sharded.offload import OffloadedOptimizer
from mlsys_lab.parallel.sharded.optimizer import ShardedOptimizer, clip_grad_norm, optimizer_state_bytes
from mlsys_lab.parallel.sharded.transport import Int8Collectives, ZeroCollectives

__all__ = [
    "FSDP",
    "Int8Collectives",
    "OffloadedOptimizer",
    "ShardedDDP",
    "ShardedOptimizer",
    "ZeroCollectives",
    "clip_grad_norm",
    "optimizer_state_bytes",
]
