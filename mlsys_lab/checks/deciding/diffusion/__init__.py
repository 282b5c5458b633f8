"""Checks of lab 12: levels and walks, losses and training, samplers and guidance, cost and shared calls."""

from mlsys_lab.checks.deciding.again import ask_again
from mlsys_lab.checks.deciding.diffusion import cost, levels, sampling, serving, training, walks
from mlsys_lab.checks.learner.spec import Lab

LAB = Lab(
    "diffusion",
    ask_again(levels.CHECKS + walks.CHECKS + training.CHECKS + sampling.CHECKS + cost.CHECKS + serving.CHECKS),
)
