"""Elementwise operations and their vector-Jacobian products; g is the gradient of the result, in the result's shape.

A vjp saves the tensors that it captures, so it captures only what it needs: `add` saves shapes, `exp` its result,
`mul` each factor for the gradient of the other.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from mlsys_lab.autograd.base import Result, TensorBase, as_torch
from mlsys_lab.autograd.ops.broadcasting import (
    BROADCASTABLE,
    apply_binary,
    operand_data,
    raise_operand_error,
    unbroadcast,
)
from mlsys_lab.autograd.storage import convert, require_floating_point


def add(a: Any, b: Any) -> Result:
    """Elementwise sum a + b, with broadcasting."""
    out, _, _, shape_a, shape_b = apply_binary(operator.add, a, b)
    return out, (a, lambda g: unbroadcast(g, shape_a)), (b, lambda g: unbroadcast(g, shape_b))


def sub(a: Any, b: Any) -> Result:
    """Elementwise difference a - b, with broadcasting."""
    out, _, _, shape_a, shape_b = apply_binary(operator.sub, a, b)
    return out, (a, lambda g: unbroadcast(g, shape_a)), (b, lambda g: -unbroadcast(g, shape_b))


def mul(a: Any, b: Any) -> Result:
    """Elementwise product a · b, with broadcasting."""
    out, x, y, shape_a, shape_b = apply_binary(operator.mul, a, b)
    return out, (a, lambda g: unbroadcast(g * y, shape_a)), (b, lambda g: unbroadcast(g * x, shape_b))


def div(a: Any, b: Any) -> Result:
    """Elementwise quotient a / b, with broadcasting; division by zero gives inf or NaN, as in IEEE arithmetic."""
    out, x, y, shape_a, shape_b = apply_binary(operator.truediv, a, b)
    return (
        out,
        (a, lambda g: unbroadcast(g / y, shape_a)),
        (b, lambda g: unbroadcast(-g * x / (y * y), shape_b)),
    )


def pow(a: Any, b: Any) -> Result:
    """Elementwise power a ** b, with broadcasting; NaN where the result is not real.

    ∂/∂a = b·aᵇ⁻¹, and 0 where b = 0. ∂/∂b = aᵇ·log a, and 0 where a = 0 and b ≥ 0.
    """
    out, x, y, shape_a, shape_b = apply_binary(operator.pow, a, b)

    def pow_base(g: torch.Tensor) -> torch.Tensor:
        if not isinstance(y, torch.Tensor):
            return torch.zeros_like(x) if y == 0 else g * (y * x ** (y - 1))
        return unbroadcast(g * torch.where(y == 0, 0.0, y * x ** (y - 1)), shape_a)

    def pow_exponent(g: torch.Tensor) -> torch.Tensor:
        base = torch.as_tensor(x, dtype=g.dtype, device=g.device)
        return unbroadcast(g * torch.where((base == 0) & (y >= 0), 0.0, out * base.log()), shape_b)

    return out, (a, pow_base), (b, pow_exponent)


def compare(relation: Callable[[Any, Any], Any], a: Any, b: Any) -> torch.Tensor:
    """Elementwise comparison, such as `operator.lt`, with broadcasting: a torch tensor of bools, without a VJP."""
    x, y = operand_data(a), operand_data(b)
    try:
        return as_torch(relation(x, y))
    except RuntimeError as problem:
        raise_operand_error(relation.__name__, problem, x, y, expected=BROADCASTABLE)


def neg(a: TensorBase) -> Result:
    """Elementwise negation, -a."""
    return -as_torch(a), (a, lambda g: -g)


def exp(a: TensorBase) -> Result:
    """Elementwise exponential eᵃ, which is its own derivative."""
    out = as_torch(a).exp()
    return out, (a, lambda g: g * out)


def log(a: TensorBase) -> Result:
    """Elementwise natural logarithm; -inf at 0 and NaN below, as in IEEE arithmetic. Derivative 1/a."""
    x = as_torch(a)
    return x.log(), (a, lambda g: g / x)


def sqrt(a: TensorBase) -> Result:
    """Elementwise square root; derivative 1 / (2·√a), infinite at 0."""
    out = as_torch(a).sqrt()
    return out, (a, lambda g: g / (2 * out))


def tanh(a: TensorBase) -> Result:
    """Elementwise hyperbolic tangent; derivative 1 - tanh²."""
    out = as_torch(a).tanh()
    return out, (a, lambda g: g * (1 - out * out))


def sigmoid(a: TensorBase) -> Result:
    """Elementwise logistic function σ = 1 / (1 + e⁻ᵃ); derivative σ(1 - σ)."""
    out = as_torch(a).sigmoid()
    return out, (a, lambda g: g * out * (1 - out))


def relu(a: TensorBase) -> Result:
    """Elementwise max(0, a), with derivative 0 at 0. Saves the result, which shows where a was positive, not a."""
    out = as_torch(a).relu()
    return out, (a, lambda g: g.masked_fill(out <= 0, 0.0))


def gelu(a: TensorBase) -> Result:
    """Elementwise a·Φ(a), Φ the normal distribution function (Hendrycks and Gimpel 2016, arXiv:1606.08415).

    Derivative Φ(a) + a·φ(a).
    """
    x = require_floating_point("gelu", as_torch(a))
    return torch.nn.functional.gelu(x), (a, lambda g: g * (_normal_cdf(x) + x * _normal_pdf(x)))


def _normal_cdf(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def _normal_pdf(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def where(condition: Any, a: Any, b: Any) -> Result:
    """Elements of a where the condition holds, of b elsewhere, all three broadcast; those not taken get gradient 0."""
    device = next((operand.device for operand in (a, b) if isinstance(operand, TensorBase)), None)
    mask = as_torch(condition, torch.bool, device)

    def choose(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.where(mask, x, y)

    out, _, _, shape_a, shape_b = apply_binary(choose, a, b)
    return (
        out,
        (a, lambda g: unbroadcast(g.masked_fill(~mask, 0.0), shape_a)),
        (b, lambda g: unbroadcast(g.masked_fill(mask, 0.0), shape_b)),
    )


def to(a: TensorBase, target: torch.dtype | torch.device | str) -> Result:
    """Copy of a in another dtype or on another device; gradients are converted back to a's own."""
    dtype, device = a.dtype, a.device
    wanted = (target, None) if isinstance(target, torch.dtype) else (None, target)
    return convert(a.data, *wanted), (a, lambda g: g.to(device=device, dtype=dtype))
