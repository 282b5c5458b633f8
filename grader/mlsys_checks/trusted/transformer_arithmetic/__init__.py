"""Checks of lab 05: einsums, parameters, FLOPs, memory, a step's time, serving, in the order of the lab's tasks."""

from mlsys_checks.sandboxed.spec import Lab
from mlsys_checks.trusted.repeats import repeat_first_case
from mlsys_checks.trusted.transformer_arithmetic import contraction, counts, einsum, memory, serving, step

CHECKS = einsum.CHECKS + contraction.CHECKS + counts.CHECKS + memory.CHECKS + step.CHECKS + serving.CHECKS
LAB = Lab("transformer-arithmetic", repeat_first_case(CHECKS))
