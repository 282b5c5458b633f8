"""Checks of lab 12: levels and walks, losses and training, samplers and guidance, cost and shared calls."""

from mlsys_checks.sandboxed.spec import Lab
from mlsys_checks.trusted.diffusion import (
    cost,
    guidance,
    levels,
    predictions,
    sampling,
    serving,
    training,
    walks,
)
from mlsys_checks.trusted.repeats import repeat_first_case

TASKS = (levels, walks, predictions, training, sampling, guidance, cost, serving)
LAB = Lab("diffusion", repeat_first_case(check for task in TASKS for check in task.CHECKS))
