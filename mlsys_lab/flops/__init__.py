"""Transformer arithmetic: parameters, FLOPs, bytes and the least time they take, worked out from sizes alone."""

from mlsys_lab.flops.config import Experts, LatentAttention, RotaryScaling, TransformerConfig
from mlsys_lab.flops.counts import count_parameters, training_flops
from mlsys_lab.flops.parameters import Parameters, parameters
from mlsys_lab.flops.presets import PRESETS, preset

__all__ = [
    "PRESETS",
    "Experts",
    "LatentAttention",
    "Parameters",
    "RotaryScaling",
    "TransformerConfig",
    "count_parameters",
    "parameters",
    "preset",
    "training_flops",
]
