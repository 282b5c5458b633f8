"""Checks of lab 07: messages, trees, rings, halving and doubling, islands, cost, gradients averaged over ranks."""

from mlsys_lab.checks.deciding.again import ask_again
from mlsys_lab.checks.deciding.collectives import cost, ring, rooted, sums
from mlsys_lab.checks.learner.spec import Lab

LAB = Lab("collectives", ask_again(rooted.CHECKS + ring.CHECKS + sums.CHECKS + cost.CHECKS + sums.GRADIENTS))
