"""Checks of lab 09: divided matrices, a divided loss, pipelines, a ring of keys, experts elsewhere, layouts."""

from mlsys_checks.sandboxed.spec import Lab
from mlsys_checks.trusted.again import ask_again
from mlsys_checks.trusted.model_parallel import context, experts, layouts, loss, pipeline, tensor

LAB = Lab(
    "model-parallel",
    ask_again(tensor.CHECKS + loss.CHECKS + pipeline.CHECKS + context.CHECKS + experts.CHECKS + layouts.CHECKS),
)
