"""Linear layers with quantized weights: integer codes and scales, dequantized at each call.

Dimension letters: O outputs, I inputs, G groups of inputs, ... any leading axes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import nn
from torch.nn import functional as F

from mlsys_lab.errors import InputError

MAX_CODE = 15
"""Largest 4-bit code."""


class QuantizedLinear(nn.Module, ABC):
    """Linear layer whose weights are dequantized at each call: activations keep their dtype, fewer bytes are read."""

    bias: torch.Tensor | None

    def __init__(self, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.register_buffer("bias", None if bias is None else bias.detach().float())

    @abstractmethod
    def weight(self) -> torch.Tensor:
        """Dequantized weights, (O, I) in fp32."""

    @abstractmethod
    def weight_error_bound(self) -> torch.Tensor:
        """Largest quantization error of each weight, half a scale, (O, I) in fp32.

        So the error of an output is at most Σᵢ |xᵢ| · boundᵢ, plus floating-point rounding.
        """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply with the dequantized weights: (..., I) -> (..., O)."""
        return F.linear(x, self.weight().to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))


class Int8Linear(QuantizedLinear):
    """Symmetric int8 weights from -127 to 127, rounded to nearest, with an fp32 scale for each output.

    Weight-only: `codes` is int8 (O, I), `scale` (O, 1) the largest weight of an output / 127.
    """

    codes: torch.Tensor
    scale: torch.Tensor

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        super().__init__(bias)
        codes, scale = round_int8(weight)
        self.register_buffer("codes", codes)
        self.register_buffer("scale", scale)

    def weight(self) -> torch.Tensor:
        """Dequantized weights, (O, I) in fp32."""
        return self.codes.float() * self.scale

    def weight_error_bound(self) -> torch.Tensor:
        """Half a scale of each weight's output, (O, I)."""
        return (self.scale / 2).expand(self.codes.shape)


def round_int8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize each row to -127 to 127: int8 (..., I), and the rows' fp32 scales (..., 1).

    A row's scale maps its largest number to 127; a row of zeros, or an empty one, has scale 1.
    """
    x = x.detach().float()
    scale = F.pad(x.abs(), (0, 1)).amax(-1, keepdim=True) / 127
    scale = scale.masked_fill(scale == 0, 1)
    return (x / scale).round().clamp(-127, 127).to(torch.int8), scale


class AffineGrid:
    """Affine 4-bit quantization of one group of inputs of each output: weight = zero_point + scale · code, 0 to 15.

    The range is from the smallest to the largest weight of the group, and includes 0. `scale` and `zero_point` (O,) are
    bf16, the zero point being the weight of code 0; rounding them to bf16 costs less than half a scale at the ends.
    """

    def __init__(self, weight: torch.Tensor) -> None:
        low, high = weight.amin(-1).clamp(max=0), weight.amax(-1).clamp(min=0)
        scale = ((high - low) / MAX_CODE).bfloat16()
        self.scale, self.zero_point = scale.masked_fill(scale == 0, 1), low.bfloat16()

    def encode(self, weight: torch.Tensor) -> torch.Tensor:
        """Round weights (O, ...) to the nearest codes, 0 to 15 in uint8: (O, ...)."""
        scale, zero_point = self._parameters(weight)
        return ((weight - zero_point) / scale).round().clamp(0, MAX_CODE).to(torch.uint8)

    def decode(self, codes: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """Dequantized weights of codes (O, ...), in the dtype of `like`."""
        scale, zero_point = self._parameters(like)
        return codes.to(like.dtype) * scale + zero_point

    def _parameters(self, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        shape = (-1, *[1] * (like.ndim - 1))
        return self.scale.to(like.dtype).view(shape), self.zero_point.to(like.dtype).view(shape)


class Int4Linear(QuantizedLinear):
    """4-bit weights, two in a byte, with an `AffineGrid` for each group of inputs: 4.5 bits a weight at groups of 64.

    `packed` is uint8 (O, I/2), the earlier input in the lower half of a byte; `scale` and `zero_point` are bf16 (O, G).
    """

    packed: torch.Tensor
    scale: torch.Tensor
    zero_point: torch.Tensor

    def __init__(self, codes: torch.Tensor, grids: list[AffineGrid], bias: torch.Tensor | None = None) -> None:
        super().__init__(bias)
        self.register_buffer("packed", codes[:, 0::2] | codes[:, 1::2] << 4)
        self.register_buffer("scale", torch.stack([grid.scale for grid in grids], -1))
        self.register_buffer("zero_point", torch.stack([grid.zero_point for grid in grids], -1))

    @classmethod
    def from_weight(cls, weight: torch.Tensor, bias: torch.Tensor | None = None, *, group_size: int = 64) -> Int4Linear:
        """Quantize weights (O, I) by rounding to nearest; InputError if groups do not divide the inputs."""
        require_groups(weight, group_size)
        weight = weight.detach().float()
        parts = torch.split(weight, group_size, -1)
        grids = [AffineGrid(part) for part in parts]
        codes = [grid.encode(part) for grid, part in zip(grids, parts, strict=True)]
        return cls(torch.cat(codes, -1), grids, bias)

    def weight(self) -> torch.Tensor:
        """Dequantized weights, (O, I) in fp32."""
        codes = torch.stack((self.packed & MAX_CODE, self.packed >> 4), -1).flatten(-2)  # (O, I)
        groups = codes.view(*self.scale.shape, -1).float()  # (O, G, I/G)
        return (groups * self.scale.float()[..., None] + self.zero_point.float()[..., None]).flatten(-2)

    def weight_error_bound(self) -> torch.Tensor:
        """Half a scale of each weight's group, (O, I)."""
        inputs = 2 * self.packed.shape[-1]
        return self.scale.float().repeat_interleave(inputs // self.scale.shape[-1], -1) / 2


def require_groups(weight: torch.Tensor, group_size: int) -> None:
    """Raise InputError unless groups of an even number of inputs divide those of a weight (O, I)."""
    inputs = weight.shape[-1]
    if group_size < 2 or group_size % 2 or inputs % group_size:
        raise InputError(
            "groups do not divide the inputs",
            got=f"groups of {group_size}, {inputs} inputs",
            expected="an even divisor",
        )
