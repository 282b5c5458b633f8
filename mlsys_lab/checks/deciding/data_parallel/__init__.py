"""Checks of lab 08: equal steps, buckets, accumulation, divided optimisers and weights, checkpoints."""

from mlsys_lab.checks.deciding.again import ask_again
from mlsys_lab.checks.deciding.data_parallel import buckets, checkpoints, costs, overlap, sharded, steps
from mlsys_lab.checks.learner.spec import Lab

LAB = Lab(
    "data-parallel",
    ask_again(steps.CHECKS + buckets.CHECKS + overlap.CHECKS + sharded.CHECKS + costs.CHECKS + checkpoints.CHECKS),
)
