"""Checks of lab 07: messages, trees, rings, halving and doubling, islands, cost, gradients averaged over ranks."""

from mlsys_checks.sandboxed.spec import Lab
from mlsys_checks.trusted.collectives import cost, ring, rooted, sums
from mlsys_checks.trusted.repeats import repeat_first_case

LAB = Lab("collectives", repeat_first_case(rooted.CHECKS + ring.CHECKS + sums.CHECKS + cost.CHECKS + sums.GRADIENTS))
