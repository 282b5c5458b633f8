"""Linear layers with quantized weights, dequantized at each call, and optionally with quantized activations.

Dimension letters: O outputs, I inputs, n tokens, ... any leading axes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from mlsys_lab.efficiency.formats import IntFormat, pack, unpack
from mlsys_lab.efficiency.quantization.calibration import quantize_tensor, round_to_scale
from mlsys_lab.efficiency.quantization.scheme import Scheme
from mlsys_lab.efficiency.quantization.tensor import QuantizedTensor
from mlsys_lab.errors import InputError

MAX_TOKENS = 128
"""Most tokens that compiled code multiplies; dequantizing once costs less than reading codes for many more."""


class PackedTensor(NamedTuple):
    """A quantized matrix (O, I) whose codes are packed as in a `QuantizedLinear`."""

    packed: torch.Tensor
    in_features: int
    scale: torch.Tensor
    zero_point: torch.Tensor | None
    scheme: Scheme


class QuantizedLinear(nn.Module):
    """Linear layer whose weights are dequantized at each call: activations keep their dtype, fewer bytes are read.

    `packed` has the codes: (O, I) of 8 bits, or (O, I · bits / 8) bytes as `pack` fills them, signed integers in two's
    complement. `scale`, `zero_point` and `tensor_scale` are those of a `QuantizedTensor`; `bias` (O,) is fp32 or None.
    With a scheme for `activations`, the input is rounded as well: with scales of its own at each call (dynamic), in
    which a row is a token, or with the fixed `input_scale` (1, 1) that strategy "tensor" requires (static). Both
    products are those of the dequantized numbers. `use_compiled`, set by the function of that name, lets compiled code
    multiply up to `MAX_TOKENS` tokens.
    """

    use_compiled = False

    packed: torch.Tensor
    scale: torch.Tensor
    zero_point: torch.Tensor | None
    tensor_scale: torch.Tensor | None
    bias: torch.Tensor | None
    input_scale: torch.Tensor | None
    input_zero_point: torch.Tensor | None

    def __init__(
        self,
        weight: QuantizedTensor,
        bias: torch.Tensor | None = None,
        *,
        activations: Scheme | None = None,
        input_scale: tuple[torch.Tensor, torch.Tensor | None] | None = None,
    ) -> None:
        super().__init__()
        if (activations is not None and activations.strategy == "tensor") != (input_scale is not None):
            raise InputError("fixed scale of activations", expected="one exactly if their strategy is 'tensor'")
        self.scheme, self.activations = weight.scheme, activations
        self.out_features, self.in_features = weight.codes.shape
        self.register_buffer("packed", _pack(weight))
        self.register_buffer("scale", weight.scale)
        self.register_buffer("zero_point", weight.zero_point)
        self.register_buffer("tensor_scale", weight.tensor_scale)
        self.register_buffer("bias", None if bias is None else bias.detach().float())
        fixed_scale, fixed_zero_point = input_scale or (None, None)
        self.register_buffer("input_scale", fixed_scale)
        self.register_buffer("input_zero_point", fixed_zero_point)

    @classmethod
    def from_packed(
        cls, weight: PackedTensor, bias: torch.Tensor | None = None, *, activations: Scheme | None = None
    ) -> QuantizedLinear:
        """A layer of codes that are packed already: checkpoints are loaded without unpacking them."""
        empty = QuantizedTensor(weight.packed[:, :0], weight.scale, weight.zero_point, weight.scheme)
        layer = cls(empty, bias, activations=activations)
        layer.packed, layer.in_features = weight.packed, weight.in_features
        return layer

    def quantized_weight(self) -> QuantizedTensor:
        """Codes, one a byte, with scales and zero points."""
        codes = _unpack(self.packed, self.scheme)
        return QuantizedTensor(codes, self.scale, self.zero_point, self.scheme, self.tensor_scale)

    def weight(self) -> torch.Tensor:
        """Dequantized weights, (O, I) in fp32."""
        return self.quantized_weight().dequantize()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply with the dequantized weights: (..., I) -> (..., O)."""
        if self.activations is not None:
            x = self._round(x, self.activations)
        is_plain = x.dtype == torch.float32 and not x.requires_grad
        if self.use_compiled and is_plain and x.numel() <= MAX_TOKENS * self.in_features:
            return self._multiply_compiled(x)
        return F.linear(x, self.weight().to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))

    def _multiply_compiled(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply activations (..., I) in fp32 with the codes on a CPU: (..., O)."""
        from mlsys_lab.kernels.quantized_matmul.compiled import multiply_int4, multiply_int8

        tokens = x.reshape(-1, self.in_features).contiguous()
        if self.scheme.format.bits == 8:
            y = multiply_int8(tokens, self.packed, self.scale[:, 0])
        else:
            y = multiply_int4(tokens, self.packed, self.scale, self.zero_point)
        if self.bias is not None:
            y += self.bias
        return y.view(*x.shape[:-1], self.out_features)

    def _round(self, x: torch.Tensor, scheme: Scheme) -> torch.Tensor:
        """Activations (..., I) rounded to their scheme, in their dtype."""
        tokens = x.reshape(-1, x.shape[-1])  # (n, I)
        if self.input_scale is None:
            rounded = quantize_tensor(tokens, scheme)
        else:
            rounded = round_to_scale(tokens, self.input_scale, self.input_zero_point, scheme)
        return rounded.dequantize().to(x.dtype).view_as(x)


def _pack(weight: QuantizedTensor) -> torch.Tensor:
    """Codes (O, I) in as few bytes as they need; InputError if a row does not fill whole bytes."""
    bits = weight.scheme.format.bits
    return weight.codes if bits == 8 else pack(weight.codes.view(torch.uint8) & (1 << bits) - 1, bits)


def _unpack(packed: torch.Tensor, scheme: Scheme) -> torch.Tensor:
    """Codes (O, I) of `_pack`: signed integers in int8, all other codes in uint8."""
    format = scheme.format
    codes = packed if format.bits == 8 else unpack(packed, format.bits)
    if format.bits == 8 or not (isinstance(format, IntFormat) and format.signed):
        return codes
    unused = 8 - format.bits
    return (codes << unused).view(torch.int8) >> unused  # the highest bit of a code is its sign
