"""Transformer arithmetic: parameters, FLOPs, bytes and the time that they take at least, computed from sizes alone."""

from mlsys_lab.flops.parameters import Parameters, parameters

__all__ = ["Parameters", "parameters"]
