"""ZeRO (Rajbhandari et al., arXiv:1910.02054): data-parallel ranks divide optimiser states, gradients and weights."""

from mlsys_lab.parallel.sharded.fsdp import FSDP
from mlsys_lab.parallel.sharded.gradients import ShardedDDP
from mlsys_lab.parallel.sharded.offload import OffloadedOptimizer
from mlsys_lab.parallel.sharded.optimizer import ShardedOptimizer, clip_gradients, state_bytes

__all__ = ["FSDP", "OffloadedOptimizer", "ShardedDDP", "ShardedOptimizer", "clip_gradients", "state_bytes"]
