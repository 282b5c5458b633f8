"""Linear layers that keep their weights as whole numbers with scales, and multiply with what those stand for.

Dimension letters: O outputs, I inputs, G groups of inputs, ... any leading axes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import nn
from torch.nn import functional as F

from mlsys_lab.errors import InputError

LEVELS = 15
"""Steps from the least to the greatest of the 16 numbers of 4 bits."""


class QuantizedLinear(nn.Module, ABC):
    """Linear layer whose weights are decoded at each call: activations keep their dtype, memory moves fewer bytes."""

    bias: torch.Tensor | None

    def __init__(self, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.register_buffer("bias", None if bias is None else bias.detach().float())

    @abstractmethod
    def weight(self) -> torch.Tensor:
        """Weights that the numbers stand for, (O, I) in fp32."""

    @abstractmethod
    def half_step(self) -> torch.Tensor:
        """Half of the distance between numbers next to each other, (O, I) in fp32.

        It is the most that a weight rounded to the nearest is off, so an output is off by at most Σᵢ |xᵢ| · half stepᵢ,
        beside the rounding of floating point.
        """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply with the decoded weights: (..., I) -> (..., O)."""
        return F.linear(x, self.weight().to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))


class Int8Linear(QuantizedLinear):
    """Weights from -127 to 127, rounded to the nearest, with an fp32 scale for each output: 8 bits a weight and a bit.

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
        """Weights that the numbers stand for, (O, I) in fp32."""
        return self.codes.float() * self.scale

    def half_step(self) -> torch.Tensor:
        """Most that a weight is off: half a scale, (O, I)."""
        return (self.scale / 2).expand(self.codes.shape)


def round_int8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round each row to whole numbers from -127 to 127: int8 (..., I), and the rows' fp32 scales (..., 1).

    A row's scale takes its largest number to 127; a row of zeros, or of nothing, has scale 1.
    """
    x = x.detach().float()
    scale = F.pad(x.abs(), (0, 1)).amax(-1, keepdim=True) / 127
    scale = scale.masked_fill(scale == 0, 1)
    return (x / scale).round().clamp(-127, 127).to(torch.int8), scale


class Grid:
    """The 16 numbers that 4 bits can name, for one group of inputs of each output: low + step · 0 to 15.

    They reach from the least to the greatest weight of the group, and 0 is always between. `low` and `step` (O,) are
    bf16; that their rounding cuts off an end costs less than half a step.
    """

    def __init__(self, weight: torch.Tensor) -> None:
        low, high = weight.amin(-1).clamp(max=0), weight.amax(-1).clamp(min=0)
        step = ((high - low) / LEVELS).bfloat16()
        self.step, self.low = step.masked_fill(step == 0, 1), low.bfloat16()

    def encode(self, weight: torch.Tensor) -> torch.Tensor:
        """Nearest of the numbers, 0 to 15 in uint8: weights (O, ...) -> (O, ...)."""
        step, low = self._of(weight)
        return ((weight - low) / step).round().clamp(0, LEVELS).to(torch.uint8)

    def decode(self, codes: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """Weights that codes (O, ...) stand for, in the dtype of `like`."""
        step, low = self._of(like)
        return codes.to(like.dtype) * step + low

    def _of(self, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        shape = (-1, *[1] * (like.ndim - 1))
        return self.step.to(like.dtype).view(shape), self.low.to(like.dtype).view(shape)


class Int4Linear(QuantizedLinear):
    """Weights of 4 bits, two in a byte, with a `Grid` for each group of inputs: 4.5 bits a weight at groups of 64.

    `packed` is uint8 (O, I/2), the earlier input in the lower half of a byte; `step` and `low` are bf16 (O, G).
    """

    packed: torch.Tensor
    step: torch.Tensor
    low: torch.Tensor

    def __init__(self, codes: torch.Tensor, grids: list[Grid], bias: torch.Tensor | None = None) -> None:
        super().__init__(bias)
        self.register_buffer("packed", codes[:, 0::2] | codes[:, 1::2] << 4)
        self.register_buffer("step", torch.stack([grid.step for grid in grids], -1))
        self.register_buffer("low", torch.stack([grid.low for grid in grids], -1))

    @classmethod
    def rounded(cls, weight: torch.Tensor, bias: torch.Tensor | None = None, *, group: int = 64) -> Int4Linear:
        """Round weights (O, I) to the nearest of their groups' numbers; InputError if groups do not divide inputs."""
        require_groups(weight, group)
        weight = weight.detach().float()
        parts = torch.split(weight, group, -1)
        grids = [Grid(part) for part in parts]
        codes = [grid.encode(part) for grid, part in zip(grids, parts, strict=True)]
        return cls(torch.cat(codes, -1), grids, bias)

    def weight(self) -> torch.Tensor:
        """Weights that the numbers stand for, (O, I) in fp32."""
        codes = torch.stack((self.packed & LEVELS, self.packed >> 4), -1).flatten(-2)  # (O, I)
        groups = codes.view(*self.step.shape, -1).float()  # (O, G, I/G)
        return (groups * self.step.float()[..., None] + self.low.float()[..., None]).flatten(-2)

    def half_step(self) -> torch.Tensor:
        """Most that a weight rounded to the nearest is off: half a step of its group, (O, I)."""
        inputs = 2 * self.packed.shape[-1]
        return self.step.float().repeat_interleave(inputs // self.step.shape[-1], -1) / 2


def require_groups(weight: torch.Tensor, group: int) -> None:
    """Raise InputError unless groups of an even number of inputs divide those of a weight (O, I)."""
    inputs = weight.shape[-1]
    if group < 2 or group % 2 or inputs % group:
        raise InputError(
            "groups do not divide the inputs", got=f"groups of {group}, {inputs} inputs", expected="an even divisor"
        )
