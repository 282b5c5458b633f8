"""Checks of lab 05: einsums, parameters, FLOPs, memory, a step's time, serving, in the order of the lab's tasks."""

from mlsys_lab.checks.spec import Lab
from mlsys_lab.checks.transformer_arithmetic import counts, einsum, memory, serving, step

LAB = Lab("transformer-arithmetic", einsum.CHECKS + counts.CHECKS + memory.CHECKS + step.CHECKS + serving.CHECKS)
