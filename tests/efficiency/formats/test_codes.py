"""Codes, numbers and rounding of every element format: against ml_dtypes, torch's float8 dtypes and plain integers."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from mlsys_lab.efficiency.formats import (
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E5M2,
    E8M0,
    INT2,
    INT3,
    INT4,
    INT8,
    NF4,
    UINT2,
    UINT3,
    UINT4,
    UINT8,
    CodeBook,
    FloatFormat,
    IntFormat,
    decode,
    encode,
    round_to,
)
from mlsys_lab.efficiency.quantization import Scheme, quantize_tensor
from mlsys_lab.errors import InputError

FLOATS = {
    "float8_e4m3fn": E4M3,
    "float8_e5m2": E5M2,
    "float6_e3m2fn": E3M2,
    "float6_e2m3fn": E2M3,
    "float4_e2m1fn": E2M1,
}
pytestmark = pytest.mark.every_case
ALL = {**FLOATS, "float8_e8m0fnu": E8M0}
INTEGERS = {"int4": INT4, "int2": INT2, "uint4": UINT4, "uint2": UINT2, "int8": INT8, "uint8": UINT8}


def all_codes(format) -> torch.Tensor:
    return torch.arange(2**format.bits).to(torch.uint8)


def oracle(x: torch.Tensor, name: str) -> torch.Tensor:
    """What ml_dtypes rounds numbers to, in float32."""
    with np.errstate(all="ignore"):
        return torch.from_numpy(x.numpy().astype(getattr(ml_dtypes, name)).astype(np.float32))


def near_ties(numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Representable numbers, the middles between them, a last one beyond, and the next of the dtype on both sides."""
    finite = numbers[numbers.isfinite()].unique().double()
    spacing = finite[-1] - finite[-2]
    middles = [(finite[1:] + finite[:-1]) / 2, finite[-1:] + spacing / 2, finite[-1:] + spacing]
    points = torch.cat([finite, *middles, -torch.cat(middles[1:])]).to(dtype)
    up, down = points.new_tensor(torch.inf), points.new_tensor(-torch.inf)
    return torch.cat([points, points.nextafter(up), points.nextafter(down)])


@pytest.mark.parametrize("name", ALL)
def test_every_code_has_its_number(name: str) -> None:
    codes = all_codes(ALL[name])
    expected = codes.numpy().view(getattr(ml_dtypes, name)).astype(np.float32)
    torch.testing.assert_close(decode(codes, ALL[name]), torch.from_numpy(expected), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(decode(codes, ALL[name]).signbit() & (codes > 0), torch.from_numpy(np.signbit(expected)))


@pytest.mark.parametrize("name", ALL)
def test_every_number_has_its_code(name: str) -> None:
    codes = all_codes(ALL[name])
    numbers = decode(codes, ALL[name])
    unique = numbers.isfinite()
    assert torch.equal(encode(numbers[unique], ALL[name]), codes[unique])  # with -0 apart from 0
    assert (
        decode(encode(numbers[numbers.isnan()], ALL[name]) if numbers.isnan().any() else codes[:0], ALL[name])
        .isnan()
        .all()
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", FLOATS)
def test_rounding_is_that_of_ml_dtypes_at_every_tie_and_next_to_it(name: str, dtype: torch.dtype) -> None:
    format = FLOATS[name]
    numbers = torch.cat([decode(all_codes(format), format), torch.tensor([1e-30, -1e-30])])
    # ml_dtypes rounds float64 to float32 first; next to a tie, both of ours are on the same side of it.
    x, expected = near_ties(numbers, dtype), oracle(near_ties(numbers, torch.float32), name)
    rounded = round_to(x, format, saturate=False)
    torch.testing.assert_close(rounded, expected, rtol=0, atol=0, equal_nan=True)
    known = ~expected.isnan()
    assert torch.equal(rounded.signbit()[known], expected.signbit()[known])
    saturated = torch.where(expected.isfinite(), expected, format.largest * x.sign().float())
    assert torch.equal(round_to(x, format), saturated)


@pytest.mark.parametrize(("name", "format"), [("float8_e4m3fn", E4M3), ("float8_e5m2", E5M2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rounding_is_that_of_torch_for_every_16_bit_number(name: str, format: FloatFormat, dtype: torch.dtype) -> None:
    every = torch.arange(2**16, dtype=torch.int32).to(torch.int16)
    x = every.view(torch.bfloat16 if dtype == torch.float32 else dtype).to(dtype)
    x = x[x.isnan() | (x.abs() <= format.largest)]  # beyond, torch's releases differ
    expected = x.to(getattr(torch, name))
    torch.testing.assert_close(round_to(x, format), expected.float(), rtol=0, atol=0, equal_nan=True)
    known = ~x.isnan()
    assert torch.equal(encode(x, format)[known], expected.view(torch.uint8)[known])


def test_overflow_follows_the_argument() -> None:
    beyond = torch.tensor([464.0, 464.1, torch.inf, -torch.inf])  # halfway to 480, which is NaN, and beyond
    assert round_to(beyond, E4M3).tolist() == [448, 448, 448, -448]
    assert encode(beyond, E4M3, saturate=False).tolist() == [0x7E, 0x7F, 0x7F, 0xFF]
    beyond = torch.tensor([61439.0, 61440, torch.inf, -torch.inf])
    assert round_to(beyond, E5M2).tolist() == [57344, 57344, 57344, -57344]
    assert encode(beyond, E5M2, saturate=False).tolist() == [0x7B, 0x7C, 0x7C, 0xFC]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scales_round_to_the_nearest_power_of_two(dtype: torch.dtype) -> None:
    powers = 2.0 ** torch.arange(-126, 127, dtype=torch.float64)  # ml_dtypes rounds subnormal float32 numbers up
    single = near_ties(powers, torch.float32)
    normal = (single >= 2.0**-126) & (single < 2.0**127)
    expected = oracle(single[normal], "float8_e8m0fnu")
    assert torch.equal(round_to(near_ties(powers, dtype)[normal], E8M0), expected)
    outside = torch.tensor([0, -1, 1e-45, 1.25 * 2.0**-127, 3.4e38, torch.inf, torch.nan])
    assert encode(outside, E8M0).tolist() == [0, 0, 0, 0, 254, 254, 255]


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_are_in_two_s_complement(name: str) -> None:
    format, codes = INTEGERS[name], all_codes(INTEGERS[name])
    narrow = codes.numpy().view(getattr(ml_dtypes, name, name))  # ml_dtypes reads the low bits of a byte
    assert decode(codes, format).tolist() == [int(number) for number in narrow]
    lowest = torch.tensor(2 ** (format.bits - 1), dtype=torch.uint8)
    used = codes[(codes != lowest) | (not format.signed)]
    assert torch.equal(encode(decode(used, format), format), used)
    assert round_to(torch.tensor([-1e9, 0.5, 1.5, torch.inf]), format).tolist()[1::2] == [0, format.largest]


def test_three_bits_are_minus_three_to_three_or_zero_to_seven() -> None:
    x = torch.tensor([-9.0, -3.4, -0.5, 0.5, 1.5, 2.5, 9.0])
    assert round_to(x, INT3).tolist() == [-3, -3, 0, 0, 2, 2, 3]
    assert round_to(x, UINT3).tolist() == [0, 0, 0, 0, 2, 2, 7]


def test_int8_codes_are_those_of_the_quantized_layers() -> None:
    x = torch.randn(5, 301, generator=torch.Generator().manual_seed(0))
    codes, scale, *_ = quantize_tensor(x, Scheme(INT8, scale_dtype=torch.float32))
    assert torch.equal(encode(x / scale, INT8).view(torch.int8), codes)


@pytest.mark.parametrize("format", [E4M3, INT4, NF4, E8M0], ids=["e4m3", "int4", "nf4", "e8m0"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 1, 5)])
def test_shapes_are_kept_and_gradients_are_not(format, shape: tuple[int, ...]) -> None:
    x = torch.full(shape, 0.5, requires_grad=True)
    codes = encode(x, format)
    assert codes.shape == decode(codes, format).shape == shape
    assert codes.dtype == torch.uint8 and not round_to(x, format).requires_grad


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: encode(torch.tensor([torch.nan, 1.0]), E2M1), "got 1 NaN"),
        (lambda: encode(torch.tensor([torch.nan]), INT4), "NaN"),
        (lambda: encode(torch.arange(3), E4M3), "got torch.int64"),
        (lambda: encode(torch.ones(3), FloatFormat(5, 10)), "got 16 bits"),
        (lambda: decode(torch.tensor([3, 16], dtype=torch.uint8), E2M1), "got code 16"),
        (lambda: decode(torch.tensor([3]), E4M3), "got torch.int64"),
        (lambda: CodeBook((0.0, 2.0, 1.0, 3.0)), "ascending"),
        (lambda: CodeBook((0.0, 1.0, 2.0)), "power of two"),
        (lambda: IntFormat(1), "bits"),
    ],
)
def test_bad_input_is_one_line(call, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        call()
    assert "\n" not in str(error.value)
