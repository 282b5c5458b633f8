"""Encode tensors in an element format, decode them, and round: to nearest with ties to even, or stochastically."""

from __future__ import annotations

from enum import StrEnum
from functools import cache

import torch

from mlsys_lab.efficiency.formats.elements import CodeBook, ElementFormat, IntFormat, nan_code
from mlsys_lab.errors import InputError
from mlsys_lab.flops.number_formats import FloatFormat


class Rounding(StrEnum):
    """How a number between two representable ones is rounded.

    NEAREST_EVEN: to the nearer one; a tie goes to the even code, in a code book to the larger number.
    STOCHASTIC: to either, with the probabilities that make the expectation the number itself (to 2⁻²⁴ of
    the spacing).
    """

    NEAREST_EVEN = "nearest-even"
    STOCHASTIC = "stochastic"


def encode(
    x: torch.Tensor,
    format: ElementFormat,
    *,
    rounding: Rounding = Rounding.NEAREST_EVEN,
    saturate: bool = True,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """Codes of floating-point numbers in a format: uint8 of the same shape.

    Numbers beyond the range, infinities too, become the largest finite number of their sign. With `saturate=False`,
    what rounds beyond the largest number becomes infinity in E5M2 and NaN in E4M3; the other formats always saturate.
    ml_dtypes never saturates E5M2 and E4M3; `.to()` of torch 2.13 saturates E4M3, but not E5M2. NaN has the code 0x7f
    in both, and raises InputError in a format without NaN. E8M0 has no sign and no zero: what is below its range
    becomes 2⁻¹²⁷. Stochastic rounding draws from `generator`, by default from torch's own.
    """
    _require_byte(format)
    x = widen(x)
    is_nan, code = x.isnan(), nan_code(format)
    if code is None and is_nan.any():
        raise InputError("NaN in a format that has none", got=f"{int(is_nan.sum())} NaN", expected="numbers")
    x = x.masked_fill(is_nan, 0)
    if isinstance(format, FloatFormat):
        codes = _encode_float(x, format, rounding, saturate, generator)
    elif isinstance(format, IntFormat):
        integers = _round(x.clamp(format.smallest, format.largest), rounding, generator).int()
        codes = integers & (2**format.bits - 1)
    else:
        codes = _encode_code_book(x, format, rounding, generator)
    return codes.to(torch.uint8).masked_fill(is_nan, code or 0)


def decode(codes: torch.Tensor, format: ElementFormat) -> torch.Tensor:
    """Numbers of uint8 codes, in float32 of the same shape. InputError for a code that the format does not have."""
    _require_byte(format)
    if codes.dtype != torch.uint8 or (codes > 2**format.bits - 1).any():
        got = codes.dtype if codes.dtype != torch.uint8 else f"code {codes.max()}"
        raise InputError("not codes of the format", got=got, expected=f"uint8 below {2**format.bits}")
    return _values(format).to(codes.device)[codes.int()]


def round_to(
    x: torch.Tensor,
    format: ElementFormat,
    *,
    rounding: Rounding = Rounding.NEAREST_EVEN,
    saturate: bool = True,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """Numbers rounded to those that a format has, in float32: `decode` of what `encode` gives for the arguments."""
    return decode(encode(x, format, rounding=rounding, saturate=saturate, generator=generator), format)


def widen(x: torch.Tensor) -> torch.Tensor:
    """Floating-point numbers without gradient, in float64 if they are, else in float32; InputError for other dtypes."""
    if not x.is_floating_point():
        raise InputError("not floating-point numbers", got=x.dtype, expected="a floating-point dtype", help="x.float()")
    return x.detach() if x.dtype == torch.float64 else x.detach().float()


def _encode_float(
    x: torch.Tensor, format: FloatFormat, rounding: Rounding, saturate: bool, generator: torch.Generator | None
) -> torch.Tensor:
    """Codes of numbers without NaN.

    Without its sign, a code counts the representable numbers from 0, and each [2ᵉ, 2ᵉ⁺¹) has 2ᵐ of them, where m is the
    number of mantissa bits. In units of their spacing, a number x of the interval is x / 2ᵉ⁻ᵐ, which rounds to an
    integer from 2ᵐ to 2ᵐ⁺¹. The code is that integer plus 2ᵐ · (e + bias - 1), also where x rounds up to 2ᵉ⁺¹.
    Subnormal numbers have the spacing of the smallest normal ones, and so the same formula.
    """
    beyond = 2.0 ** (format.largest_exponent + 1)  # keeps the steps small, and is beyond the range
    magnitude = x.abs().clamp(max=beyond)
    exponent = torch.frexp(magnitude.clamp(min=format.smallest_normal)).exponent - 1  # floor(log₂)
    steps = torch.ldexp(magnitude, format.mantissa_bits - exponent)  # in units of the spacing: exact
    codes = (exponent + format.bias - 1 << format.mantissa_bits) + _round(steps, rounding, generator).int()
    overflow = 0 if saturate or format.specials == "none" else 1  # the next code is infinity in E5M2, NaN in E4M3
    codes = codes.clamp(max=format.largest_code + overflow)
    return codes | torch.signbit(x).int() << format.bits - 1


def _encode_code_book(
    x: torch.Tensor, format: CodeBook, rounding: Rounding, generator: torch.Generator | None
) -> torch.Tensor:
    """Codes of numbers without NaN: of the nearer neighbour, or of either."""
    values = _values(format)[: len(format.finite)].to(x.device, torch.float64)
    x = x.double().clamp(values[0], values[-1])
    if rounding is Rounding.NEAREST_EVEN:
        return torch.bucketize(x, (values[1:] + values[:-1]) / 2, right=True)
    lower = torch.bucketize(x, values[1:-1], right=True)
    low, high = values[lower], values[lower + 1]
    return lower + _round((x - low) / (high - low), rounding, generator).int()


def _round(x: torch.Tensor, rounding: Rounding, generator: torch.Generator | None) -> torch.Tensor:
    """Numbers rounded to integers."""
    if rounding is Rounding.NEAREST_EVEN:
        return x.round()
    floor = x.floor()
    return floor + (torch.rand(x.shape, generator=generator, device=x.device) < x - floor)


def _require_byte(format: ElementFormat) -> None:
    if format.bits > 8:
        raise InputError("format too wide for codes of a byte", got=f"{format.bits} bits", expected="at most 8")


@cache
def _values(format: ElementFormat) -> torch.Tensor:
    """Number of each code, in float32."""
    return torch.tensor([format.value(code) for code in range(2**format.bits)], dtype=torch.float32)
