"""Checks of lab 08: equal steps, buckets, accumulation, divided optimisers and weights, checkpoints."""

from mlsys_lab.checks.deciding.again import ask_again
from mlsys_lab.checks.deciding.data_parallel import checkpoints, overlap, sharded, steps
from mlsys_lab.checks.learner.spec import Lab

LAB = Lab("data-parallel", ask_again(steps.CHECKS + overlap.CHECKS + sharded.CHECKS + checkpoints.CHECKS))
