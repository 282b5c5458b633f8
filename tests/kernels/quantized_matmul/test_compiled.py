"""Products of few rows with quantized weights on a CPU: within the error that rounding activations allows."""

from __future__ import annotations

import pytest
import torch

from mlsys_lab.kernels.quantized_matmul import int4_matmul, int8_matmul
from tests.kernels.quantized_matmul.test_quantized_matmul import int4_weights, int8_weights

SCALE_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def assert_within_rounding(y, x, weights, group):
    """Each output is off by at most Σ |weight| · half the scale of its activations, and fp32 rounding."""
    groups = x.double().split(group, 1)
    half_scales = torch.cat([part.abs().amax(1, keepdim=True).expand_as(part) for part in groups], 1) / 32767 / 2
    exact, bound = x.double() @ weights.T, half_scales @ weights.abs().T
    fp32 = 1e-5 * (x.double().abs() @ weights.abs().T)
    assert ((y - exact).abs() <= bound + fp32).all()
    assert (y - exact).abs().max() > bound.max() / 1000, "activations are rounded"


@pytest.mark.parametrize(
    ("n", "O", "I"), [(1, 1, 1), (1, 5, 63), (3, 7, 64), (2, 33, 513), (5, 4, 1000), (1, 64, 4096)]
)
def test_int8_at_odd_sizes(n, O, I):
    x, (operands, weights) = torch.randn(n, I), int8_weights(O, I)
    assert_within_rounding(int8_matmul(x, *operands, step="compiled"), x, weights, 64)


@pytest.mark.parametrize("signed", [False, True], ids=["zero points", "signed"])
@pytest.mark.parametrize("dtype", SCALE_DTYPES, ids=str)
@pytest.mark.parametrize(
    ("n", "O", "I", "group"),
    [(1, 1, 2, 2), (1, 3, 32, 32), (2, 5, 96, 32), (1, 7, 192, 64), (3, 4, 256, 128), (1, 3, 96, 48), (2, 2, 42, 7)],
)
def test_int4_at_odd_sizes_and_groups(n, O, I, group, dtype, signed):
    x, (operands, weights) = torch.randn(n, I), int4_weights(O, I, group, signed=signed, scale_dtype=dtype)
    assert_within_rounding(int4_matmul(x, *operands, step="compiled"), x, weights, group)


def test_codes_and_activations_at_the_ends_of_their_ranges():
    """All sums are the largest: a 32-bit sum that overflows would change the sign."""
    x = torch.ones(1, 4096)
    for code in (-128, 127):
        y = int8_matmul(x, torch.full((2, 4096), code, dtype=torch.int8), torch.ones(2), step="compiled")
        assert y.flatten().tolist() == pytest.approx([4096 * code] * 2)
    for code in (0, 15):
        packed = torch.full((2, 2048), 17 * code, dtype=torch.uint8)
        for zero in (0, 15):
            scale, zero_point = torch.ones(2, 1), torch.full((2, 1), zero, dtype=torch.uint8)
            y = int4_matmul(x, packed, scale, zero_point, step="compiled")
            assert y.flatten().tolist() == pytest.approx([4096 * (code - zero)] * 2, abs=1)


def test_an_outlier_coarsens_its_own_group_alone():
    x, (operands, weights) = torch.randn(1, 256), int4_weights(9, 256, 32)
    x[0, 5] = 1000.0
    y = int4_matmul(x, *operands, step="compiled").double()
    exact, rest = x.double() @ weights.T, weights[:, :32].abs().sum(1) * 1000 / 32767 / 2
    assert ((y - exact).abs() <= rest + 1e-2).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_row_that_is_not_finite_gives_nan_and_leaves_the_other_rows(bad):
    x, (int8, _), (int4, _) = torch.randn(3, 96), int8_weights(4, 96), int4_weights(4, 96, 32)
    x[1, 40] = bad
    for multiply, operands in (int8_matmul, int8), (int4_matmul, int4):
        y = multiply(x, *operands, step="compiled")
        assert y[1].isnan().all()
        assert torch.equal(y[[0, 2]], multiply(x[[0, 2]], *operands, step="compiled"))


@pytest.mark.parametrize("size", [0.0, 1e-40, 1e-30, 1e30])
def test_tiny_and_huge_activations(size):
    x, (operands, weights) = torch.randn(2, 64) * size, int8_weights(3, 64)
    y = int8_matmul(x, *operands, step="compiled")
    torch.testing.assert_close(y.double(), x.double() @ weights.T, rtol=1e-3, atol=max(1e-26, size))


def test_half_precision_scales_are_read_exactly():
    """Every positive number of fp16 as a scale, subnormal ones too: the product of code 1 with activation 1."""
    scale = torch.arange(1, 0x7C00, dtype=torch.int16).view(torch.float16)[:, None]
    packed, x = torch.full((len(scale), 1), 0x01, dtype=torch.uint8), torch.tensor([[1.0, 0.0]])
    y = int4_matmul(x, packed, scale, torch.zeros(scale.shape, dtype=torch.uint8), step="compiled")
    torch.testing.assert_close(y[0], scale[:, 0].float(), rtol=2e-7, atol=0)
