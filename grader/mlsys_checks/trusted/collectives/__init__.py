"""Checks of lab 07: messages, trees, rings, halving and doubling, islands, cost, gradients averaged over ranks."""

from mlsys_checks.sandboxed.spec import Lab
from mlsys_checks.trusted.again import ask_again
from mlsys_checks.trusted.collectives import cost, ring, rooted, sums

LAB = Lab("collectives", ask_again(rooted.CHECKS + ring.CHECKS + sums.CHECKS + cost.CHECKS + sums.GRADIENTS))
