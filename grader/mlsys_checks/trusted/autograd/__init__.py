"""Checks of lab 01: scalar engine, tensor engine, training, checkpointing, in the order of the lab's tasks."""

from mlsys_checks.sandboxed.spec import Lab
from mlsys_checks.trusted.again import ask_again
from mlsys_checks.trusted.autograd import checkpointing, classifier, scalar, shapes, tensor, training

CHECKS = scalar.CHECKS + tensor.CHECKS + shapes.CHECKS + training.CHECKS + classifier.CHECKS + checkpointing.CHECKS
LAB = Lab("autograd", ask_again(CHECKS))
