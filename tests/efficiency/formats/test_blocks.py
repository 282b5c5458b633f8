"""Block formats against a slow reference in exact arithmetic, written from the specifications."""

from __future__ import annotations

from bisect import bisect_left
from fractions import Fraction
from functools import cache

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mlsys_lab.efficiency.formats import (
    E4M3,
    INT4,
    MXFP4,
    MXFP6_E2M3,
    MXFP6_E3M2,
    MXFP8_E4M3,
    MXFP8_E5M2,
    NF4,
    NVFP4,
    BlockCodes,
    BlockFormat,
    Rounding,
    bits_per_weight,
    decode,
    decode_blocks,
    encode_blocks,
    round_to_blocks,
)
from mlsys_lab.errors import InputError

MX = {
    "float8_e4m3fn": (MXFP8_E4M3, 8),
    "float8_e5m2": (MXFP8_E5M2, 15),
    "float6_e3m2fn": (MXFP6_E3M2, 4),
    "float6_e2m3fn": (MXFP6_E2M3, 2),
    "float4_e2m1fn": (MXFP4, 2),
}
"""Formats and emax of their elements (MX v1.0, table of §5.3), by ml_dtypes' name of the element."""
pytestmark = pytest.mark.every_case
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
ROUND = st.sampled_from([0.0, -0.0, 1.0, -1.5, 2.5, 5.0, 6.0, -7.0, 448.0, 464.0, 2.0**-130, 3 * 2.0**60])
"""Numbers on ties and ends of formats, more often than chance has them."""


def rows(size: int):
    return st.lists(FINITE | ROUND, min_size=size, max_size=size)


def floor_log2(number: Fraction) -> int:
    exponent = 0
    while number >= 2:
        number, exponent = number / 2, exponent + 1
    while number < 1:
        number, exponent = number * 2, exponent - 1
    return exponent


@cache
def magnitudes(name: str) -> list[Fraction]:
    """Finite numbers of a format from 0, in the order of their codes."""
    dtype = getattr(ml_dtypes, name)
    codes = np.arange(2 ** (ml_dtypes.finfo(dtype).bits - 1), dtype=np.uint8)
    return [Fraction(float(x)) for x in codes.view(dtype) if np.isfinite(x)]


def nearest(number: Fraction, name: str) -> Fraction:
    """The nearest number of a format; of two, that with the even code. Beyond the largest, the largest."""
    known = magnitudes(name)
    upper = min(bisect_left(known, abs(number)), len(known) - 1)
    code = min((max(upper - 1, 0), upper), key=lambda code: (abs(known[code] - abs(number)), code % 2))
    return known[code] if number >= 0 else -known[code]


def mx_reference(row: list[float], name: str, emax: int) -> list[Fraction]:
    numbers = [Fraction(x) for x in row]
    largest = max(map(abs, numbers))
    exponent = floor_log2(largest) - emax if largest else -127
    scale = Fraction(2) ** min(max(exponent, -127), 127)
    return [nearest(x / scale, name) * scale for x in numbers]


@pytest.mark.parametrize("name", MX)
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_mx_formats_are_those_of_the_specification(name: str, data) -> None:
    format, emax = MX[name]
    row = data.draw(rows(32))
    rounded = round_to_blocks(torch.tensor([row, row]), format)
    assert [Fraction(x) for x in rounded[1].tolist()] == mx_reference(row, name, emax)


def nvfp4_tensor_scale(amax: float) -> Fraction:
    return Fraction(float(np.float32(float(Fraction(amax) / (6 * 448))))) or Fraction(1)


def nvfp4_reference(row: list[float]) -> list[float]:
    numbers = [Fraction(x) for x in row]
    tensor_scale = nvfp4_tensor_scale(max(map(abs, row)))
    rounded = []
    for block in (numbers[:16], numbers[16:]):
        scale = nearest(max(map(abs, block)) / (6 * tensor_scale), "float8_e4m3fn") or Fraction(2) ** -9
        rounded += [float(nearest(x / (scale * tensor_scale), "float4_e2m1fn") * scale * tensor_scale) for x in block]
    return np.array(rounded, dtype=np.float32).tolist()


@settings(max_examples=60, deadline=None)
@given(rows(32))
def test_nvfp4_is_what_exact_arithmetic_gives(row: list[float]) -> None:
    assert round_to_blocks(torch.tensor(row), NVFP4).tolist() == nvfp4_reference(row)


@settings(max_examples=60, deadline=None)
@given(st.floats(1, 1000, width=32), st.integers(8, 120))
def test_nvfp4_is_exact_where_a_scale_is_a_hair_from_a_tie(amax: float, code: int) -> None:
    tie = (magnitudes("float8_e4m3fn")[code] + magnitudes("float8_e4m3fn")[code + 1]) / 2
    smaller = float(np.float32(float(tie * 6 * nvfp4_tensor_scale(amax))))
    row = [amax] + 15 * [0.0] + [smaller, smaller / 3] + 14 * [0.0]
    row = np.array(row, dtype=np.float32).tolist()
    assert round_to_blocks(torch.tensor(row), NVFP4).tolist() == nvfp4_reference(row)


def test_scales_are_codes_of_their_own() -> None:
    x = torch.zeros(2, 32)
    x[0, 3], x[1, 4] = 6.0, 96.0
    codes, scales, tensor_scale = encode_blocks(x, MXFP4)
    assert scales.tolist() == [[127], [131]] and tensor_scale == 1  # 1 and 16, both times 6
    assert codes[0, 3] == codes[1, 4] == 0b0111 and codes.count_nonzero() == 2
    assert encode_blocks(torch.zeros(32), MXFP4).scales.tolist() == [0]
    huge = encode_blocks(torch.full((32,), -1e300, dtype=torch.float64), MXFP4)
    assert huge.scales.tolist() == [254] and (huge.codes == 0b1111).all()
    codes, scales, tensor_scale = encode_blocks(x, NVFP4)
    assert tensor_scale == 96 / (6 * 448)
    assert decode(scales, E4M3).tolist() == [[28, 2**-9], [448, 2**-9]]


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
def test_a_block_that_is_not_finite_is_nan(bad: float) -> None:
    x = torch.ones(3, 64)
    x[1, 40] = bad
    expected = torch.zeros(3, 64, dtype=torch.bool)
    expected[1, 32:] = True
    assert torch.equal(round_to_blocks(x, MXFP8_E4M3).isnan(), expected)
    assert round_to_blocks(x, NVFP4).isnan().all()


@pytest.mark.parametrize("format", [MXFP4, NVFP4], ids=["mxfp4", "nvfp4"])
def test_stochastic_rounding_is_unbiased_below_the_largest(format: BlockFormat) -> None:
    x = torch.linspace(-1, 1, 32)
    x[0], x[-1] = -6 / 4, 6 / 4  # the largest element is representable
    generator = torch.Generator().manual_seed(0)
    drawn = round_to_blocks(x.expand(20_000, -1), format, rounding=Rounding.STOCHASTIC, generator=generator).double()
    deviation = (drawn.mean(0) - x).abs()
    # Hoeffding: numbers within a spacing, at most a third of the largest, of which a mean strays with chance 1e-9.
    assert (deviation <= (x.abs().max() / 3) * (np.log(2 * 32 / 1e-9) / (2 * 20_000)) ** 0.5).all()


@pytest.mark.parametrize("shape", [(0, 32), (2, 0), (0,), (3, 1, 64)])
@pytest.mark.parametrize("format", [MXFP6_E3M2, NVFP4], ids=["mxfp6", "nvfp4"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_shapes_and_zeros_are_kept(format: BlockFormat, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    blocks = encode_blocks(torch.zeros(shape, dtype=dtype), format)
    assert isinstance(blocks, BlockCodes) and blocks.codes.shape == shape
    assert blocks.scales.shape == (*shape[:-1], shape[-1] // format.block_size)
    assert torch.equal(decode_blocks(blocks, format), torch.zeros(shape))


def test_bits_of_a_weight_count_its_scales() -> None:
    bits = [8.25, 8.25, 6.25, 6.25, 4.25]
    assert [bits_per_weight(format) for format, _ in MX.values()] == bits
    assert bits_per_weight(NVFP4) == 4.5 and bits_per_weight(NVFP4, (32, 4096)) == 4.5 + 1 / 128
    assert bits_per_weight(NF4, (8, 64), (32, 64 * 256)) == 4.126953125  # QLoRA's double quantization
    assert bits_per_weight(INT4, (16, 128)) == 4.125
    codes, scales, _ = encode_blocks(torch.ones(4096), MXFP8_E4M3)
    assert bits_per_weight(MXFP8_E4M3) == 8 * (codes.nbytes + scales.nbytes) / 4096


@pytest.mark.parametrize("x", [torch.ones(33), torch.ones(32, 8), torch.tensor(1.0), torch.ones(32).int()])
def test_bad_input_is_one_line(x: torch.Tensor) -> None:
    with pytest.raises(InputError, match="expected"):
        encode_blocks(x, MXFP4)
