"""Transformer arithmetic: parameters, FLOPs, bytes and the time that they take at least, computed from sizes alone."""

from mlsys_lab.flops.counts import count_parameters, training_flops
from mlsys_lab.flops.parameters import Parameters, parameters

__all__ = ["Parameters", "count_parameters", "parameters", "training_flops"]
