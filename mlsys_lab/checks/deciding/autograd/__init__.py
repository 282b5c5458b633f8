"""Checks of lab 01: scalar engine, tensor engine, training, checkpointing, in the order of the lab's tasks."""

from mlsys_lab.checks.deciding.again import ask_again
from mlsys_lab.checks.deciding.autograd import checkpointing, classifier, scalar, shapes, tensor, training
from mlsys_lab.checks.learner.spec import Lab

CHECKS = scalar.CHECKS + tensor.CHECKS + shapes.CHECKS + training.CHECKS + classifier.CHECKS + checkpointing.CHECKS
LAB = Lab("autograd", ask_again(CHECKS))
