"""Quantized layers on a CPU: products of few tokens by compiled code that reads the codes, without dequantizing them.

Dimension letters: O outputs, I inputs, ... any leading axes.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import nn

from mlsys_lab.efficiency.formats import IntFormat
from mlsys_lab.efficiency.quantization.layers import QuantizedLinear


def use_compiled(model: nn.Module) -> None:
    """Let the quantized layers of a model that are supported multiply by compiled code, and compile it.

    That takes a few seconds, unless an earlier process has left its machine code in Numba's cache. The code rounds
    activations to 16 bits, as `mlsys_lab.kernels.quantized_matmul.compiled` describes. Layers that are not supported
    dequantize their weights as before.
    """
    for layer in model.modules():
        if isinstance(layer, QuantizedLinear) and supports(layer):
            layer.use_compiled = True
            with torch.no_grad():
                layer(torch.zeros(1, layer.in_features))  # compiles


def supports(layer: QuantizedLinear) -> bool:
    """Whether Numba is installed and compiled code takes the layer's scheme, on a CPU.

    That is int8 by channel, symmetric, or 4-bit integers by channel or group.
    """
    format, strategy = layer.scheme.format, layer.scheme.strategy
    if not isinstance(format, IntFormat) or not layer.packed.is_cpu or find_spec("numba") is None:
        return False
    from mlsys_lab.kernels.quantized_matmul import SCALE_DTYPES

    is_int8 = format.bits == 8 and format.signed and strategy == "channel"
    return layer.scale.dtype in SCALE_DTYPES and (is_int8 or (format.bits == 4 and strategy != "tensor"))
