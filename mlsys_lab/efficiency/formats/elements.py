"""Element formats as data: what number each code of at most 8 bits stands for.

Floating point follows OCP's 8-bit specification (OFP8 v1.0) and microscaling formats (MX v1.0, §5.3): a `FloatFormat`
of `mlsys_lab.flops.number_formats`. E4M3 has no infinities and one NaN for each sign (torch calls it float8_e4m3fn),
E5M2 has both as in IEEE 754, and the 6- and 4-bit formats have neither.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mlsys_lab.errors import InputError
from mlsys_lab.flops.number_formats import FLOAT_FORMATS, FloatFormat
from mlsys_lab.validation import require_integer, require_power_of_two

E4M3, E5M2 = FLOAT_FORMATS["fp8 e4m3"], FLOAT_FORMATS["fp8 e5m2"]
E3M2, E2M3 = FLOAT_FORMATS["fp6 e3m2"], FLOAT_FORMATS["fp6 e2m3"]
E2M1 = FLOAT_FORMATS["fp4 e2m1"]


@dataclass(frozen=True)
class IntFormat:
    """Integers, before any scale: symmetric (`signed`, two's complement) or asymmetric (from 0, for a zero point).

    Symmetric quantization uses -(2ᵇ⁻¹ - 1) to 2ᵇ⁻¹ - 1 and never encodes -2ᵇ⁻¹. An asymmetric code stands for
    scale · (code - zero point), of which the format knows the code alone.
    """

    bits: int
    signed: bool = True

    def __post_init__(self) -> None:
        require_integer("bits", self.bits, at_least=2)

    @property
    def largest(self) -> int:
        """Largest integer."""
        return (1 << self.bits - self.signed) - 1

    @property
    def smallest(self) -> int:
        """Smallest integer that is encoded: -`largest`, or 0."""
        return -self.largest if self.signed else 0

    def value(self, code: int) -> float:
        """Integer that a code stands for."""
        return float(code - (1 << self.bits) if code > self.largest else code)


INT8, INT4, INT3, INT2 = (IntFormat(bits) for bits in (8, 4, 3, 2))
UINT8, UINT4, UINT3, UINT2 = (IntFormat(bits, signed=False) for bits in (8, 4, 3, 2))


@dataclass(frozen=True)
class CodeBook:
    """A format given by the number of each code, in ascending order; the last one may be NaN."""

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        require_power_of_two("number of codes", len(self.values), at_least=2)
        if not all(low < high for low, high in zip(self.finite, self.finite[1:], strict=False)):
            raise InputError("code book out of order", expected="ascending numbers")

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return len(self.values).bit_length() - 1

    @property
    def finite(self) -> tuple[float, ...]:
        """The numbers without a NaN at the end."""
        return self.values[:-1] if math.isnan(self.values[-1]) else self.values

    @property
    def largest(self) -> float:
        """Largest number."""
        return self.finite[-1]

    def value(self, code: int) -> float:
        """Number that a code stands for."""
        return self.values[code]


ElementFormat = FloatFormat | IntFormat | CodeBook
"""A format in which each number has a code of its own."""

E8M0 = CodeBook((*(2.0 ** (code - 127) for code in range(255)), math.nan))
"""Scales of MX blocks, the powers of two from 2⁻¹²⁷ to 2¹²⁷ (MX v1.0, §5.4.1): no sign, no zero, code 255 is NaN."""


def nan_code(format: ElementFormat) -> int | None:
    """Code of NaN, all bits set but the sign; None for a format without NaN."""
    if isinstance(format, FloatFormat) and format.specials != "none":
        return (1 << format.bits - 1) - 1
    if isinstance(format, CodeBook) and math.isnan(format.values[-1]):
        return len(format.values) - 1
    return None
