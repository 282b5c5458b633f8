"""Weight quantization to 8 or 4 bits: fewer bytes per decoded token, and so a lower bound on its time.

layers       Int8Linear, Int4Linear: integer codes and scales, with bounds of the error
compensate   compensate(weight, inputs, group_size=64): 4-bit weights with error compensation (GPTQ)
outliers     MixedInt8Linear: 8-bit activations, with outlier columns in 16 bits (LLM.int8)
convert      quantize(model, scheme, calibration=None) -> a quantized copy of a model; SCHEMES
traffic      weight_bytes(model), token_bytes(model, past): bytes that a decoded token moves
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
