"""Scales and rounding: errors within half a scale, clipping that pays, block formats equal to `formats`' own."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mlsys_lab.efficiency.formats import (
    E2M1,
    INT3,
    INT4,
    INT8,
    MXFP4,
    NF4,
    NVFP4,
    UINT3,
    UINT4,
    UINT8,
    decode_blocks,
    encode_blocks,
)
from mlsys_lab.efficiency.quantization import Scheme, choose_scale, quantize_tensor
from mlsys_lab.errors import InputError

INTEGERS = {"int8": INT8, "int4": INT4, "int3": INT3, "uint8": UINT8, "uint4": UINT4}
STRATEGIES = {"tensor": ("tensor",), "channel": ("channel",), "group": ("group", 32)}
BLOCKS = {
    "mxfp4": (MXFP4, Scheme(E2M1, "group", 32, torch.float8_e8m0fnu)),
    "nvfp4": (NVFP4, Scheme(E2M1, "group", 16, torch.float8_e4m3fn)),
}


def weights(seed=0, outputs=5, inputs=128, scale=1.0, shift=0.0):
    return scale * (torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed)) + shift)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("format", INTEGERS)
@given(seed=st.integers(0, 10**6), exponent=st.integers(-30, 30), shift=st.sampled_from([-20.0, 0.0, 0.3, 20.0]))
def test_no_weight_is_further_off_than_half_a_scale(format, strategy, seed, exponent, shift):
    w = weights(seed, scale=2.0**exponent, shift=shift)
    quantized = quantize_tensor(w, Scheme(INTEGERS[format], *STRATEGIES[strategy], scale_dtype=torch.float32))
    off, half = (quantized.dequantize() - w).abs(), quantized.error_bound()
    assert off.shape == half.shape and (off <= half * (1 + 1e-4)).all()
    assert off.max() > half.min() / 2  # the bound is tight


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scales_of_16_bits_cost_little(dtype):
    w = weights(inputs=4096)
    for format in (INT8, UINT4):
        quantized = quantize_tensor(w, Scheme(format, "group", 64, dtype))
        assert quantized.scale.dtype == dtype
        assert ((quantized.dequantize() - w).abs() <= 2 * quantized.error_bound()).all()


def test_a_scale_maps_the_range_to_the_codes():
    w = weights()
    scale, zero_point = choose_scale(w, Scheme(INT8, scale_dtype=torch.float32))
    torch.testing.assert_close(scale, w.abs().amax(-1, keepdim=True) / 127)
    assert zero_point is None
    scale, zero_point = choose_scale(w, Scheme(UINT4, "group", 64, torch.float32))
    ends = w.unflatten(-1, (2, 64))
    torch.testing.assert_close(scale, (ends.amax(-1) - ends.amin(-1)) / 15)
    assert torch.equal(zero_point, (-ends.amin(-1) / scale).round().to(torch.uint8))


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("scale", [1.0, 1e-4, 1e4])
def test_mxfp4_and_nvfp4_are_the_block_formats(name, scale):
    format, scheme = BLOCKS[name]
    w = weights(scale=scale)
    w[1, :32] = 0
    quantized, blocks = quantize_tensor(w, scheme), encode_blocks(w, format)
    assert torch.equal(quantized.codes, blocks.codes)
    assert torch.equal(quantized.scale.view(torch.uint8), blocks.scales)
    assert torch.equal(quantized.dequantize(), decode_blocks(blocks, format))


@pytest.mark.parametrize("format", [INT3, INT4, UINT3, E2M1, NF4], ids=["int3", "int4", "uint3", "e2m1", "nf4"])
def test_the_range_of_least_squares_is_the_best_of_many(format):
    w, scheme = weights(1, 3, 64), Scheme(format, "channel", scale_dtype=torch.float32)
    errors = {
        method: (quantize_tensor(w, scheme, method).dequantize() - w).square().sum(-1) for method in ("max", "mse")
    }
    assert (errors["mse"] <= errors["max"]).all() and errors["mse"].sum() < 0.97 * errors["max"].sum()
    for row, error in zip(w, errors["mse"], strict=True):
        ratios = torch.linspace(0.2, 1, 100)
        tried = torch.stack(
            [
                (quantize_tensor(row[None].clamp(row.min() * r, row.max() * r), scheme).dequantize() - row)
                for r in ratios
            ]
        )
        assert error <= 1.02 * tried.square().sum(-1).min()


def test_a_percentile_ignores_a_few_outliers():
    w = weights(inputs=5000)
    w[:, 7] = 100.0
    scheme = Scheme(INT8, scale_dtype=torch.float32)
    whole, clipped = (quantize_tensor(w, scheme, method).dequantize() for method in ("max", "percentile"))
    regular = torch.arange(5000) != 7
    assert ((clipped - w)[:, regular].norm()) < 0.1 * (whole - w)[:, regular].norm()
    sides = torch.stack((w, -w)).kthvalue(4995, -1).values  # all but 0.1 %, on either side
    expected = sides.amax(0)[:, None]
    torch.testing.assert_close(clipped.amax(-1, keepdim=True), expected)


@pytest.mark.parametrize("format", [INT8, UINT4, E2M1, NF4], ids=["int8", "uint4", "e2m1", "nf4"])
def test_zeros_and_constant_rows_come_back(format):
    w = weights()
    w[1], w[2], w[3] = 0, 0.75, -0.75
    quantized = quantize_tensor(w, Scheme(format, scale_dtype=torch.float32)).dequantize()
    assert (quantized[1] == 0).all()
    torch.testing.assert_close(quantized[2:4], w[2:4])


def test_sixteen_numbers_of_a_group_come_back_exactly():
    w = torch.arange(16.0).repeat(3, 4)[:, torch.randperm(64, generator=torch.Generator().manual_seed(0))] - 8
    assert torch.equal(quantize_tensor(w, Scheme(UINT4, "group", 64)).dequantize(), w)


def test_smaller_groups_are_nearer():
    w = weights()
    off = [(quantize_tensor(w, Scheme(INT4, "group", size)).dequantize() - w).norm() for size in (16, 32, 64, 128)]
    assert off == sorted(off) and off[0] < 0.9 * off[-1]


def test_scales_beyond_their_dtype_saturate():
    tiny, huge = (quantize_tensor(weights(scale=scale), Scheme(INT8)) for scale in (1e-12, 1e12))
    assert (tiny.scale == 2.0**-24).all() and (tiny.codes == 0).all()
    assert (huge.scale == 65504).all() and huge.codes.abs().max() == 127


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_is_named(bad):
    w = weights()
    w[3, 5] = bad
    with pytest.raises(InputError, match="numbers that are not finite: got NaN or an infinity in row 3"):
        quantize_tensor(w, Scheme(INT8))


@pytest.mark.parametrize("group", [3, 48, 256])
def test_groups_that_do_not_divide_the_inputs_are_one_line(group):
    with pytest.raises(InputError, match=f"groups do not divide the inputs: got groups of {group}, 128 inputs"):
        quantize_tensor(weights(), Scheme(INT4, "group", group))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("row",), "unknown strategy: got 'row'"),
        (("group",), "group_size out of range"),
        (("channel", 32), "group size without groups"),
        (("channel", None, torch.float64), "dtype of scales"),
    ],
)
def test_a_bad_scheme_is_one_line(arguments, message):
    with pytest.raises(InputError, match=message):
        Scheme(INT4, *arguments)
    with pytest.raises(InputError, match="not a matrix"):
        quantize_tensor(torch.ones(3), Scheme(INT4))
    with pytest.raises(InputError, match="unknown method of calibration"):
        quantize_tensor(torch.ones(3, 3), Scheme(INT4), "least")
