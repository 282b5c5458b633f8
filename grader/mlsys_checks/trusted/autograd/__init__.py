"""Checks of lab 01: scalar engine, tensor engine, training, checkpointing, in the order of the lab's tasks."""

from mlsys_checks.sandboxed.spec import Lab
from mlsys_checks.trusted.autograd import checkpointing, classifier, scalar, shapes, tensor, training
from mlsys_checks.trusted.repeats import repeat_first_case

CHECKS = scalar.CHECKS + tensor.CHECKS + shapes.CHECKS + training.CHECKS + classifier.CHECKS + checkpointing.CHECKS
LAB = Lab("autograd", repeat_first_case(CHECKS))
