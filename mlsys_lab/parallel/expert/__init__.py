"""Expert parallelism: every rank has some experts, and tokens travel to those that they have chosen and back."""

from mlsys_lab.parallel.expert.balance import load_balancing_loss
from mlsys_lab.parallel.expert.layer import ExpertParallelMoE
from mlsys_lab.parallel.expert.routing import Routing, route
from mlsys_lab.parallel.expert.transformer import apply_expert_parallel

__all__ = ["ExpertParallelMoE", "Routing", "apply_expert_parallel", "load_balancing_loss", "route"]
