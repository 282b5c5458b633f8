"""Quantized matrices: codes with their scales and zero points, and rounding to them.

Dimension letters: O rows, I inputs, G scales of a row, as in `Scheme`; ... any shape.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from mlsys_lab.efficiency.formats import ElementFormat, IntFormat, decode, encode
from mlsys_lab.efficiency.quantization.scheme import Scheme
from mlsys_lab.errors import InputError


class QuantizedTensor(NamedTuple):
    """A matrix (O, I) in few bits: number = tensor_scale · scale · (code's number - zero point).

    `codes` (O, I) are int8 for signed integers, else uint8, one code a byte. `scale` (O, G) has the scheme's dtype:
    (1, 1) per tensor, (O, 1) per channel. `zero_point` (O, G) are codes in uint8, None for a symmetric scheme.
    `tensor_scale` () in fp32 is None unless the scheme has one.
    """

    codes: torch.Tensor
    scale: torch.Tensor
    zero_point: torch.Tensor | None
    scheme: Scheme
    tensor_scale: torch.Tensor | None = None

    def dequantize(self) -> torch.Tensor:
        """The numbers (O, I), in fp32."""
        zero_point = None if self.zero_point is None else self.zero_point[..., None]
        groups = from_codes(
            self.scheme.split(self.codes), self.scale.float()[..., None], zero_point, self.scheme.format
        )
        if self.tensor_scale is not None:
            groups = groups * self.tensor_scale
        return groups.reshape(self.codes.shape)

    def error_bound(self) -> torch.Tensor:
        """Largest rounding error of each number, half its scale: (O, I) in fp32, plus floating-point rounding.

        For integers whose scales come from the largest magnitude. InputError for other formats, where the spacing
        depends on the number.
        """
        if not isinstance(self.scheme.format, IntFormat):
            raise InputError("a bound for evenly spaced numbers alone", got=self.scheme.format, expected="integers")
        half = self.scale.float()[..., None] / 2
        return half.expand(self.scheme.split(self.codes).shape).reshape(self.codes.shape)


def to_codes(
    x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | None, format: ElementFormat
) -> torch.Tensor:
    """Nearest codes of numbers (...); scales and zero points are broadcast. Numbers beyond the range saturate."""
    scaled = x / scale
    if not isinstance(format, IntFormat):
        return encode(scaled, format)
    integers = scaled.round() if zero_point is None else scaled.round() + zero_point
    return integers.clamp(format.smallest, format.largest).to(torch.int8 if format.signed else torch.uint8)


def from_codes(
    codes: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | None, format: ElementFormat
) -> torch.Tensor:
    """Numbers of codes (...), in the dtype of the scales, which are broadcast."""
    values = codes if isinstance(format, IntFormat) else decode(codes, format)
    return (values.to(scale.dtype) if zero_point is None else values.to(scale.dtype) - zero_point) * scale
