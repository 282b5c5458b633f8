"""Checks of lab 09: divided matrices, a divided loss, pipelines, a ring of keys, experts elsewhere, layouts."""

from mlsys_lab.checks.deciding.again import ask_again
from mlsys_lab.checks.deciding.model_parallel import context, experts, layouts, loss, pipeline, tensor
from mlsys_lab.checks.learner.spec import Lab

LAB = Lab(
    "model-parallel",
    ask_again(tensor.CHECKS + loss.CHECKS + pipeline.CHECKS + context.CHECKS + experts.CHECKS + layouts.CHECKS),
)
