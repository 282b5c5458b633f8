"""Number formats of few bits: their codes, largest and least numbers, bits with scales, and the noise of rounding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from mlsys_lab.validation import require_at_least_one, require_non_negative, require_positive


@dataclass(frozen=True)
class FloatFormat:
    """A binary floating-point format: sign, exponent with the usual bias of 2ᵉ⁻¹ - 1, mantissa, subnormal numbers.

    `specials` says which codes are not finite numbers: those of the last exponent, for infinity and NaN ("ieee"); the
    last code alone, for NaN ("nan"); or none.
    """

    exponent_bits: int
    mantissa_bits: int
    specials: Literal["ieee", "nan", "none"] = "ieee"

    def __post_init__(self) -> None:
        require_at_least_one(exponent_bits=self.exponent_bits, mantissa_bits=self.mantissa_bits)

    @property
    def bits(self) -> int:
        """Bits of one number, its sign included."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def bias(self) -> int:
        """What is taken from an exponent's code to give the exponent."""
        return int(2 ** (self.exponent_bits - 1)) - 1

    @property
    def largest_code(self) -> int:
        """Code of the largest finite number: the codes between it and the sign bit are infinity or NaN."""
        specials = {"ieee": 1 << self.mantissa_bits, "nan": 1, "none": 0}[self.specials]
        return (1 << self.bits - 1) - 1 - specials

    @property
    def largest(self) -> float:
        """Largest finite number."""
        return self.value(self.largest_code)

    @property
    def largest_exponent(self) -> int:
        """Exponent of the largest finite number: floor(log₂) of it."""
        return math.frexp(self.largest)[1] - 1

    @property
    def smallest_normal(self) -> float:
        """Least positive number that has all bits of its mantissa."""
        return float(2.0 ** (1 - self.bias))

    @property
    def smallest_subnormal(self) -> float:
        """Least positive number of all."""
        return self.smallest_normal * 2.0**-self.mantissa_bits

    def value(self, code: int) -> float:
        """Number that a code stands for: its bits are the sign, the exponent and the mantissa, highest first.

        >>> [FLOAT_FORMATS["fp4 e2m1"].value(code) for code in (0b0001, 0b0010, 0b0111, 0b1111)]
        [0.5, 1.0, 6.0, -6.0]
        """
        negative, magnitude = divmod(code, 1 << self.bits - 1)
        exponent, mantissa = divmod(magnitude, 1 << self.mantissa_bits)
        if magnitude > self.largest_code:
            number = math.inf if self.specials == "ieee" and mantissa == 0 else math.nan
        elif exponent == 0:
            number = mantissa * self.smallest_subnormal
        else:
            number = float((1 + mantissa * 2.0**-self.mantissa_bits) * 2.0 ** (exponent - self.bias))
        return -number if negative else number


FLOAT_FORMATS = {
    "fp32": FloatFormat(8, 23),
    "bf16": FloatFormat(8, 7),
    "fp16": FloatFormat(5, 10),
    "fp8 e5m2": FloatFormat(5, 2),
    "fp8 e4m3": FloatFormat(4, 3, "nan"),
    "fp6 e3m2": FloatFormat(3, 2, "none"),
    "fp6 e2m3": FloatFormat(2, 3, "none"),
    "fp4 e2m1": FloatFormat(2, 1, "none"),
}
"""Formats that models are trained and served in; fp8 as Micikevicius et al. (arXiv:2209.05433, table 1) define it, fp6
and fp4 as the OCP's microscaling formats do (arXiv:2310.10537)."""


def scaled_bits(bits: float, *scales: tuple[float, int]) -> float:
    """Bits of a number together with its part of the scales, each given as (its bits, numbers that share it).

    Scales that have a scale themselves are shared by all numbers below them: QLoRA's double quantisation
    (arXiv:2305.14314, §3) keeps an 8-bit scale for 64 weights, and one of 32 bits for 256 such scales.

    >>> scaled_bits(4, (16, 128)), scaled_bits(4, (8, 64), (32, 64 * 256))
    (4.125, 4.126953125)
    """
    require_non_negative(bits=bits)
    for scale_bits, shared in scales:
        require_non_negative(scale_bits=scale_bits)
        require_at_least_one(shared=shared)
    return bits + sum(scale_bits / shared for scale_bits, shared in scales)


def sine_signal_to_noise_db(bits: int) -> float:
    """Signal over rounding noise in dB for a sine over the whole range of 2ᵇ even steps: 20·log₁₀(2ᵇ·√1.5).

    Noise is taken as even over a step, of variance step²/12: 6.02 dB a bit and 1.76.
    """
    require_positive(bits=bits)
    return 20 * math.log10(2.0**bits * math.sqrt(1.5))
