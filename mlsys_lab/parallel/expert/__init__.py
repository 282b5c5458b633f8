"""Expert parallelism: every rank has some experts, and tokens travel to those that they have chosen and back."""

from mlsys_lab.parallel.expert.balance import balance_loss
from mlsys_lab.parallel.expert.layer import ExpertParallel
from mlsys_lab.parallel.expert.routing import Routing, route
from mlsys_lab.parallel.expert.transformer import divide_experts

__all__ = ["ExpertParallel", "Routing", "balance_loss", "divide_experts", "route"]
