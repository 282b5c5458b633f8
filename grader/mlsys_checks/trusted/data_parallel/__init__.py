"""Checks of lab 08: equal steps, buckets, accumulation, divided optimisers and weights, checkpoints."""

from mlsys_checks.sandboxed.spec import Lab
from mlsys_checks.trusted.again import ask_again
from mlsys_checks.trusted.data_parallel import buckets, checkpoints, costs, overlap, sharded, steps

LAB = Lab(
    "data-parallel",
    ask_again(steps.CHECKS + buckets.CHECKS + overlap.CHECKS + sharded.CHECKS + costs.CHECKS + checkpoints.CHECKS),
)
