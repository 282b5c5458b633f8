"""Weight quantization to 8 or 4 bits: fewer bytes per decoded token, and so a lower bound on its time.

layers       Int8Linear, Int4Linear: integer codes and scales, with bounds of the error
gptq         compensate(weight, inputs, group_size=64): 4-bit weights with error compensation (GPTQ)
llm_int8     MixedInt8Linear: 8-bit activations, with outlier columns in 16 bits (LLM.int8)
convert      quantize(model, scheme, calibration=None) -> a quantized copy of a model; SCHEMES
"""

from mlsys_lab.efficiency.quantization.convert import SCHEMES, quantize
from mlsys_lab.efficiency.quantization.gptq import compensate
from mlsys_lab.efficiency.quantization.layers import Int4Linear, Int8Linear
from mlsys_lab.efficiency.quantization.llm_int8 import MixedInt8Linear

__all__ = [
    "SCHEMES",
    "Int4Linear",
    "Int8Linear",
    "MixedInt8Linear",
    "compensate",
    "quantize",
]
