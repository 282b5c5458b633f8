"""A linear layer whose three products, one forward and two backward, have operands of 8 bits.

Dimension letters: n tokens, I inputs, O outputs, ... any leading axes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from mlsys_lab.efficiency.fp8.recipes import Recipe
from mlsys_lab.efficiency.fp8.scaling import ScaledTensor


class Fp8Linear(nn.Linear):
    """Linear layer trained in 8 bits: (..., I) -> (..., O), with the formats and scales of a recipe.

    What FP8 tensor cores compute, simulated: operands are rounded to 8 bits, their products are exact, and sums are
    in fp32 (on Hopper's tensor cores about 14 bits of a sum survive, which DeepSeek-V3 works around, arXiv:2412.19437,
    §3.3.2; that loss is left out). `weight` and `bias` stay in fp32 for the optimizer, which is what makes updates
    smaller than the spacing of 8 bits count. The backward pass keeps inputs and weights as 8-bit codes. The bias is
    added, and its gradient summed, in high precision.
    """

    def __init__(self, linear: nn.Linear, recipe: Recipe) -> None:
        """A layer with the parameters of `linear`, the same objects."""
        super().__init__(linear.in_features, linear.out_features, bias=False, device="meta")
        self.weight, self.bias = linear.weight, linear.bias
        self.input_scaling = recipe.make_scaling("input")
        self.weight_scaling = recipe.make_scaling("weight")
        self.gradient_scaling = recipe.make_scaling("gradient")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply with the weights: (..., I) -> (..., O), in the dtype of x."""
        y: torch.Tensor = _Product.apply(x.reshape(-1, self.in_features), self.weight, self)  # type: ignore[no-untyped-call]
        y = y.to(x.dtype).view(*x.shape[:-1], self.out_features)
        return y if self.bias is None else y + self.bias.to(x.dtype)


class _Product(torch.autograd.Function):
    """Y = X Wᵀ with its backward pass dX = dY W, dW = dYᵀ X: (n, I) and (O, I) -> (n, O), fp32."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, layer: Fp8Linear) -> torch.Tensor:
        """Cast x and the weights and multiply them; keep their codes."""
        inputs, weights = layer.input_scaling(x), layer.weight_scaling(weight)
        x_8, w_8 = inputs.along_columns, weights.along_columns
        ctx.save_for_backward(x_8.codes, x_8.scale, w_8.codes, w_8.scale)
        ctx.layer, ctx.tiles, ctx.dtype = layer, (x_8.tile, w_8.tile), x.dtype
        y: torch.Tensor = inputs.along_rows.dequantize() @ weights.along_rows.dequantize().mT
        return y

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        """Cast the gradient (n, O) and multiply it with the codes of both."""
        x_codes, x_scale, w_codes, w_scale = ctx.saved_tensors
        x_8, w_8 = ScaledTensor(x_codes, x_scale, ctx.tiles[0]), ScaledTensor(w_codes, w_scale, ctx.tiles[1])
        gradient = ctx.layer.gradient_scaling(grad)
        dx = dw = None
        if ctx.needs_input_grad[0]:
            dx = (gradient.along_rows.dequantize() @ w_8.dequantize()).to(ctx.dtype)  # (n, I)
        if ctx.needs_input_grad[1]:
            dw = gradient.along_columns.dequantize().mT @ x_8.dequantize()  # (O, I)
        return dx, dw, None
