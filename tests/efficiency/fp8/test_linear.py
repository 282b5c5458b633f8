"""Products of 8 bits, forward and backward: against torch's own FP8 product and float64 of operands by ml_dtypes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn

from mlsys_lab.efficiency.formats import E4M3, E5M2
from mlsys_lab.efficiency.fp8 import RECIPES, Fp8Linear, Recipe, count_lost

DTYPES = {torch.float8_e4m3fn: ml_dtypes.float8_e4m3fn, torch.float8_e5m2: ml_dtypes.float8_e5m2}
INPUTS, OUTPUTS, TOKENS = 160, 72, 40
SUM = 2.0**-20
"""Error of a sum of at most 160 products in fp32, relative to the sum of their magnitudes: 16 roundings in a tree."""


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def make(recipe: Recipe, *, bias: bool = False) -> Fp8Linear:
    torch.manual_seed(0)
    return Fp8Linear(nn.Linear(INPUTS, OUTPUTS, bias=bias), recipe)


def round_tiles(x: torch.Tensor, dtype: type, largest: float, tile: tuple[int, int]) -> torch.Tensor:
    """Float64 numbers of a matrix rounded by ml_dtypes, each tile with the power of two that fits its largest."""
    rounded = torch.zeros(x.shape, dtype=torch.float64)
    for top in range(0, x.shape[0], tile[0]):
        for left in range(0, x.shape[1], tile[1]):
            part = (slice(top, top + tile[0]), slice(left, left + tile[1]))
            scale = 2.0 ** np.ceil(np.log2(x[part].abs().amax().item() / largest))
            rounded[part] = torch.from_numpy((x[part].numpy() / scale).astype(dtype).astype(np.float64) * scale)
    return rounded


E4M3_PARTS, E5M2_PARTS = (ml_dtypes.float8_e4m3fn, 448.0), (ml_dtypes.float8_e5m2, 57344.0)
WHOLE = (10**6, 10**6)
OPERANDS = {  # tiles of x, w and g in the forward product, and of what sums over tokens; format of gradients
    "current": (WHOLE, WHOLE, WHOLE, E5M2_PARTS),
    "block": ((1, 128), (128, 128), (128, 1), E4M3_PARTS),
}


def close(found: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Require a product of exact float64 operands, up to the error of summing in fp32."""
    assert ((found - left @ right).abs() <= SUM * (left.abs() @ right.abs())).all()


@pytest.mark.parametrize("name", OPERANDS)
def test_the_three_products_are_those_of_the_rounded_operands(name):
    rows, square, columns, gradient_format = OPERANDS[name]
    layer, x, g = make(RECIPES[name]), normal(TOKENS, INPUTS, seed=1), normal(TOKENS, OUTPUTS, seed=2) * 1e-6
    x.requires_grad_()
    y = layer(x)
    y.backward(g)
    weight = round_tiles(layer.weight.detach(), *E4M3_PARTS, square)
    close(y.detach(), round_tiles(x.detach(), *E4M3_PARTS, rows), weight.mT)
    close(x.grad, round_tiles(g, *gradient_format, rows), weight)
    close(
        layer.weight.grad, round_tiles(g, *gradient_format, columns).mT, round_tiles(x.detach(), *E4M3_PARTS, columns)
    )


def test_the_product_is_that_of_torch_with_fp8_operands():
    layer, x = make(RECIPES["current"]), normal(TOKENS, INPUTS, seed=1)
    operand, weight = layer.input_scaling(x).along_rows, layer.weight_scaling(layer.weight).along_rows
    y = torch._scaled_mm(
        operand.codes, weight.codes.mT, scale_a=operand.scale, scale_b=weight.scale, out_dtype=torch.float32
    )
    torch.testing.assert_close(layer(x), y, rtol=0, atol=1e-5 * y.abs().max().item())


def test_bf16_operands_are_rounded_to_bf16():
    layer, x = make(RECIPES["bf16"]), normal(TOKENS, INPUTS, seed=1)
    close(layer(x).detach(), x.bfloat16().double(), layer.weight.detach().bfloat16().double().mT)


@pytest.mark.parametrize("name", RECIPES)
def test_a_layer_keeps_its_parameters_bias_axes_and_dtype(name):
    linear = nn.Linear(INPUTS, OUTPUTS)
    layer, x = Fp8Linear(linear, RECIPES[name]), normal(2, 3, INPUTS)
    assert layer.weight is linear.weight and layer.bias is linear.bias and layer.weight.dtype == torch.float32
    y = layer(x)
    assert y.shape == (2, 3, OUTPUTS) and y.dtype == torch.float32
    torch.testing.assert_close(y, linear(x), rtol=0, atol=0.1)
    assert layer(x.bfloat16()).dtype == torch.bfloat16
    assert layer(x[0, 0]).shape == (OUTPUTS,) and layer(x[:, :0]).shape == (2, 0, OUTPUTS)
    y.sum().backward()
    torch.testing.assert_close(layer.bias.grad, torch.full((OUTPUTS,), 6.0))


def test_a_layer_trains_without_a_gradient_of_its_input_and_frozen():
    layer = make(RECIPES["current"])
    layer(normal(4, INPUTS)).sum().backward()
    assert layer.weight.grad is not None
    layer.weight.requires_grad_(False)
    x = normal(4, INPUTS).requires_grad_()
    layer(x).sum().backward()
    assert x.grad.shape == x.shape


@pytest.mark.parametrize(("name", "bytes_each"), [("bf16", 2), ("current", 1), ("block", 1)])
def test_the_backward_pass_keeps_codes_of_inputs_and_weights(name, bytes_each):
    saved = []
    layer, x = make(RECIPES[name]), normal(TOKENS, INPUTS)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        layer(x)
    matrices = [tensor for tensor in saved if tensor.numel() >= OUTPUTS * INPUTS or tensor.numel() == TOKENS * INPUTS]
    assert sum(tensor.nbytes for tensor in matrices) == bytes_each * INPUTS * (TOKENS + OUTPUTS)
    scales = [tensor for tensor in saved if tensor.dtype == torch.float32]
    expected = [INPUTS, 2] if name == "block" else [1, 1]  # (1, 160) tiles of 40 tokens; (1, 2) of 128 x 128
    assert [tensor.numel() for tensor in scales] == expected


def gradients(recipe: Recipe, size: float) -> tuple[torch.Tensor, float]:
    """Gradient of the weights for output gradients of this size, and the fraction of these that underflowed."""
    layer = make(recipe)
    with count_lost(layer) as lost:
        layer(normal(TOKENS, INPUTS)).backward(normal(TOKENS, OUTPUTS, seed=2) * size)
    return layer.weight.grad, lost["gradient_scaling"].underflow


def test_gradients_without_a_scale_flush_to_zero():
    size = 1e-4  # of a mean loss over ten thousand tokens
    exact, _ = gradients(RECIPES["bf16"], size)
    for backward, largest_left in ((E4M3, 0.0), (E5M2, 1.0)):
        unscaled, flushed = gradients(Recipe(backward=backward, scaling="none"), size)
        scaled, kept = gradients(Recipe(backward=backward), size)
        assert flushed > (0.99 if backward is E4M3 else 0.05) and kept < 0.001
        assert (scaled - exact).norm() < 0.1 * exact.norm()
        assert unscaled.abs().max() <= largest_left
    assert gradients(Recipe(scaling="none"), 1e-6)[1] == 1.0  # E5M2 as well, of a mean over a million


def test_scales_make_layers_indifferent_to_the_size_of_the_loss():
    for name in ("current", "block"):
        first, _ = gradients(RECIPES[name], 2.0**-20)
        second, _ = gradients(RECIPES[name], 2.0**12)
        assert torch.equal(first * 2.0**32, second)
