"""What a quantized tensor consists of: the format of its codes, and which numbers share a scale.

Dimension letters: O rows (outputs of weights, tokens of activations), I inputs, G scales of a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch

from mlsys_lab.efficiency.formats import ElementFormat, IntFormat, bits_per_weight
from mlsys_lab.errors import InputError
from mlsys_lab.validation import require_integer, require_one_of

Strategy = Literal["tensor", "channel", "group"]
"""Which numbers of a matrix (O, I) share a scale, in the words of compressed-tensors: all, those of a row (an output of
weights, a token of activations), or `group_size` neighbours of a row."""
ZERO_POINT_BITS = 8
"""Bits that a zero point is stored in: a byte, also where its code has fewer."""
SCALE_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e8m0fnu)


@dataclass(frozen=True)
class Scheme:
    """How a matrix (O, I) is quantized: number = scale · (code's number - zero point).

    An unsigned `IntFormat` is asymmetric and has zero points; all other formats are symmetric and have none. Scales in
    `torch.float8_e8m0fnu` are the powers of two of MX formats; scales in `torch.float8_e4m3fn` are relative to one fp32
    scale of the whole tensor, as in NVFP4. InputError for a group size without groups, and for groups without one.
    """

    format: ElementFormat
    strategy: Strategy = "channel"
    group_size: int | None = None
    scale_dtype: torch.dtype = torch.float16

    def __post_init__(self) -> None:
        require_one_of("strategy", self.strategy, get_args(Strategy))
        if self.strategy == "group":
            require_integer("group_size", self.group_size)
        elif self.group_size is not None:
            raise InputError("group size without groups", got=self.strategy, expected="strategy 'group'")
        if self.scale_dtype not in SCALE_DTYPES:
            raise InputError("dtype of scales", got=self.scale_dtype, expected=f"one of {SCALE_DTYPES}")
        if self.format.bits > 8:
            raise InputError("format too wide for codes of a byte", got=f"{self.format.bits} bits")

    @property
    def symmetric(self) -> bool:
        """Whether there are no zero points."""
        return not (isinstance(self.format, IntFormat) and not self.format.signed)

    @property
    def has_tensor_scale(self) -> bool:
        """Whether the scales are relative to one of the whole tensor."""
        return self.scale_dtype == torch.float8_e4m3fn

    def split(self, x: torch.Tensor) -> torch.Tensor:
        """Numbers (O, I) by scale: (O, G, I/G), per tensor (1, 1, O·I). InputError if groups do not divide the inputs.

        >>> from mlsys_lab.efficiency.formats import INT4
        >>> Scheme(INT4, "group", 32).split(torch.ones(3, 64)).shape
        torch.Size([3, 2, 32])
        """
        if x.ndim != 2:
            raise InputError("not a matrix", got=f"shape {tuple(x.shape)}", expected="(O, I)")
        if self.strategy == "tensor":
            return x.reshape(1, 1, x.numel())
        inputs = x.shape[1]
        size = self.group_size or inputs
        if self.group_size is not None and inputs % size:
            got = f"groups of {size}, {inputs} inputs"
            raise InputError("groups do not divide the inputs", got=got, expected="a divisor of the inputs")
        return x.reshape(len(x), inputs // size if size else 1, size)

    def bits_per_weight(self, shape: tuple[int, int]) -> float:
        """Bits of a number of a matrix (O, I), with its part of scales and zero points.

        >>> from mlsys_lab.efficiency.formats import INT4, UINT4
        >>> [Scheme(format, "group", 32).bits_per_weight((64, 64)) for format in (INT4, UINT4)]
        [4.5, 4.75]
        """
        rows, inputs = shape
        shared = {"tensor": rows * inputs, "channel": inputs, "group": self.group_size or 0}[self.strategy]
        scale_bits = torch.finfo(self.scale_dtype).bits + (0 if self.symmetric else ZERO_POINT_BITS)
        whole = [(32.0, rows * inputs)] if self.has_tensor_scale else []
        return bits_per_weight(self.format, (scale_bits, shared), *whole)
