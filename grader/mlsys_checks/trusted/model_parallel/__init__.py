"""Checks of lab 09: divided matrices, a divided loss, pipelines, a ring of keys, experts elsewhere, layouts."""

from mlsys_checks.sandboxed.spec import Lab
from mlsys_checks.trusted.model_parallel import context, experts, layouts, loss, pipeline, tensor
from mlsys_checks.trusted.repeats import repeat_first_case

LAB = Lab(
    "model-parallel",
    repeat_first_case(tensor.CHECKS + loss.CHECKS + pipeline.CHECKS + context.CHECKS + experts.CHECKS + layouts.CHECKS),
)
