"""Quantization-aware training: weights that learn to be rounded.

Jacob et al. 2018 (arXiv:1712.05877, §3) round weights and activations in the forward pass of training; the gradient
ignores the rounding (straight-through estimator, Bengio et al. 2013, arXiv:1308.3432, §4).
Dimension letters: O outputs, I inputs, n tokens, ... any leading axes.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from mlsys_lab.efficiency.quantization.calibration import Clipping, quantize_tensor
from mlsys_lab.efficiency.quantization.recipes import Recipe
from mlsys_lab.efficiency.quantization.scheme import Scheme
from mlsys_lab.errors import InputError
from mlsys_lab.models import Transformer


def fake_quantize(x: torch.Tensor, scheme: Scheme, method: Clipping = "max") -> torch.Tensor:
    """Round a matrix (O, I) as `quantize_tensor` does, in fp32; the gradient passes as if it were not rounded.

    The true derivative of rounding is zero almost everywhere, so no weight would ever change. The estimate is right on
    average: over many spacings, the rounded numbers rise as the numbers do.
    """
    rounded: torch.Tensor = _RoundStraightThrough.apply(x, scheme, method)  # type: ignore[no-untyped-call]
    return rounded


class FakeQuantizedLinear(nn.Linear):
    """Linear layer that computes with rounded weights and trains the weights from before the rounding.

    Outputs are those of the `QuantizedLinear` that the recipe makes of it, so training sees the loss of the quantized
    model. An update that is too small to change a code is not lost: it adds up in `weight`. Scales follow the
    weights at each call; no gradient goes through them.
    """

    def __init__(self, linear: nn.Linear, recipe: Recipe) -> None:
        """A layer with the parameters of `linear`, the same objects."""
        super().__init__(linear.in_features, linear.out_features, bias=False, device="meta")
        self.weight, self.bias, self.recipe = linear.weight, linear.bias, recipe

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply with the rounded weights: (..., I) -> (..., O)."""
        if self.recipe.activations is not None:
            x = fake_quantize(x.reshape(-1, self.in_features), self.recipe.activations).to(x.dtype).view_as(x)
        weight = fake_quantize(self.weight, self.recipe.weights, self.recipe.clipping)
        return F.linear(x, weight.to(x.dtype), self.bias)


def prepare_qat(model: Transformer, recipe: Recipe) -> Transformer:
    """A copy of a model that trains with the linear layers of its blocks rounded, as `quantize` rounds them.

    After training, `quantize(model, recipe)` makes the quantized model, with the same outputs. InputError for a recipe
    that needs calibration: its scales would be those of the weights and inputs before training.
    """
    if recipe.needs_calibration:
        expected = "rounding to nearest, and activations with dynamic scales"
        raise InputError("a recipe that needs calibration cannot be trained with", got=recipe.method, expected=expected)
    prepared = copy.deepcopy(model)
    for block in prepared.blocks:
        linears = [(name, module) for name, module in block.named_modules() if isinstance(module, nn.Linear)]
        for name, linear in linears:
            parent, _, child = name.rpartition(".")
            setattr(block.get_submodule(parent), child, FakeQuantizedLinear(linear, recipe))
    return prepared


class _RoundStraightThrough(torch.autograd.Function):
    """Quantize and dequantize; the derivative is taken as 1."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scheme: Scheme, method: Clipping) -> torch.Tensor:
        """Round a matrix (O, I)."""
        return quantize_tensor(x, scheme, method).dequantize()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """Pass the gradient (O, I)."""
        return grad, None, None
