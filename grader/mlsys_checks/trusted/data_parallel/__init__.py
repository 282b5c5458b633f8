"""Checks of lab 08: equal steps, buckets, accumulation, divided optimisers and weights, checkpoints."""

from mlsys_checks.sandboxed.spec import Lab
from mlsys_checks.trusted.data_parallel import buckets, checkpoints, costs, overlap, sharded, steps
from mlsys_checks.trusted.repeats import repeat_first_case

LAB = Lab(
    "data-parallel",
    repeat_first_case(
        steps.CHECKS + buckets.CHECKS + overlap.CHECKS + sharded.CHECKS + costs.CHECKS + checkpoints.CHECKS
    ),
)
