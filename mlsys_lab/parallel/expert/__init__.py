"""Expert parallelism: every rank has some experts, and tokens travel to those that they have chosen and back."""

from mlsys_lab.parallel.expert.balance import balance_loss
from mlsys_lab.parallel.expert.layer import ExpertParallel
from mlsys_lab.parallel.expert.routing import Routing, route

__all__ = ["ExpertParallel", "Routing", "balance_loss", "route"]
