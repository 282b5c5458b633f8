"""Weights in 8 or 4 bits: what a token moves through memory shrinks with them, and so does the least time it takes.

layers       Int8Linear, Int4Linear: layers that keep whole numbers and scales, and how far off a weight can be
compensate   compensate(weight, inputs, group=64): 4-bit weights whose later columns make up for earlier ones (GPTQ)
outliers     MixedInt8Linear: activations in 8 bits too, a few columns of large ones in 16 (LLM.int8)
convert      quantize(model, scheme, calibration=None) -> a copy of a model with such layers; SCHEMES
traffic      weight_bytes(model), token_bytes(model, past): what a decoded token reads and writes
"""

from mlsys_lab.inference.quantize.compensate import compensate
from mlsys_lab.inference.quantize.convert import SCHEMES, quantize
from mlsys_lab.inference.quantize.layers import Int4Linear, Int8Linear
from mlsys_lab.inference.quantize.outliers import MixedInt8Linear
from mlsys_lab.inference.quantize.traffic import token_bytes, weight_bytes

__all__ = [
    "SCHEMES",
    "Int4Linear",
    "Int8Linear",
    "MixedInt8Linear",
    "compensate",
    "quantize",
    "token_bytes",
    "weight_bytes",
]
