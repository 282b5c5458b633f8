"""Elementwise operations and their vector-Jacobian products; g is the gradient of the result, in the result's shape.

A vjp keeps alive what it names, so it names what it needs and no more: `add` keeps shapes only, `exp` its result,
`mul` each factor for the other's sake.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from mlsys_lab.autograd.operation import record
from mlsys_lab.autograd.ops.broadcasting import BROADCASTABLE, broadcast, operand_data, raise_operand_error, unbroadcast
from mlsys_lab.autograd.storage import convert, require_floating_point
from mlsys_lab.autograd.tensor import Tensor, as_torch


def add(a: Any, b: Any) -> Tensor:
    """Elementwise sum a + b, with broadcasting."""
    out, _, _, shape_a, shape_b = broadcast(operator.add, a, b)
    return record(out, (a, lambda g: unbroadcast(g, shape_a)), (b, lambda g: unbroadcast(g, shape_b)))


def sub(a: Any, b: Any) -> Tensor:
    """Elementwise difference a - b, with broadcasting."""
    out, _, _, shape_a, shape_b = broadcast(operator.sub, a, b)
    return record(out, (a, lambda g: unbroadcast(g, shape_a)), (b, lambda g: -unbroadcast(g, shape_b)))


def mul(a: Any, b: Any) -> Tensor:
    """Elementwise product a · b, with broadcasting."""
    out, x, y, shape_a, shape_b = broadcast(operator.mul, a, b)
    return record(out, (a, lambda g: unbroadcast(g * y, shape_a)), (b, lambda g: unbroadcast(g * x, shape_b)))


def div(a: Any, b: Any) -> Tensor:
    """Elementwise quotient a / b, with broadcasting; division by zero gives inf or NaN, as in IEEE arithmetic."""
    out, x, y, shape_a, shape_b = broadcast(operator.truediv, a, b)
    return record(
        out,
        (a, lambda g: unbroadcast(g / y, shape_a)),
        (b, lambda g: unbroadcast(-g * x / (y * y), shape_b)),
    )


def pow(a: Any, b: Any) -> Tensor:
    """Elementwise power a ** b, with broadcasting; NaN where the result is not real.

    ∂/∂a = b·aᵇ⁻¹, and 0 where b = 0. ∂/∂b = aᵇ·log a, and 0 where a = 0 and b ≥ 0.
    """
    out, x, y, shape_a, shape_b = broadcast(operator.pow, a, b)

    def pow_base(g: torch.Tensor) -> torch.Tensor:
        if not isinstance(y, torch.Tensor):
            return torch.zeros_like(x) if y == 0 else g * (y * x ** (y - 1))
        return unbroadcast(g * torch.where(y == 0, 0.0, y * x ** (y - 1)), shape_a)

    def pow_exponent(g: torch.Tensor) -> torch.Tensor:
        base = torch.as_tensor(x, dtype=g.dtype, device=g.device)
        return unbroadcast(g * torch.where((base == 0) & (y >= 0), 0.0, out * base.log()), shape_b)

    return record(out, (a, pow_base), (b, pow_exponent))


def compare(relation: Callable[[Any, Any], Any], a: Any, b: Any) -> Tensor:
    """Elementwise truth of a relation such as `operator.lt`, with broadcasting: a tensor of bools without gradient."""
    x, y = operand_data(a), operand_data(b)
    try:
        return Tensor(relation(x, y))
    except RuntimeError as problem:
        raise_operand_error(relation.__name__, problem, x, y, expected=BROADCASTABLE)


def neg(a: Tensor) -> Tensor:
    """Elementwise negation, -a."""
    return record(-as_torch(a), (a, lambda g: -g))


def exp(a: Tensor) -> Tensor:
    """Elementwise exponential eᵃ, which is its own derivative."""
    out = as_torch(a).exp()
    return record(out, (a, lambda g: g * out))


def log(a: Tensor) -> Tensor:
    """Elementwise natural logarithm; -inf at 0 and NaN below, as in IEEE arithmetic. Slope 1/a."""
    x = as_torch(a)
    return record(x.log(), (a, lambda g: g / x))


def sqrt(a: Tensor) -> Tensor:
    """Elementwise square root; slope 1 / (2·√a), infinite at 0."""
    out = as_torch(a).sqrt()
    return record(out, (a, lambda g: g / (2 * out)))


def tanh(a: Tensor) -> Tensor:
    """Elementwise hyperbolic tangent; slope 1 - tanh²."""
    out = as_torch(a).tanh()
    return record(out, (a, lambda g: g * (1 - out * out)))


def sigmoid(a: Tensor) -> Tensor:
    """Elementwise logistic function σ = 1 / (1 + e⁻ᵃ); slope σ(1 - σ)."""
    out = as_torch(a).sigmoid()
    return record(out, (a, lambda g: g * out * (1 - out)))


def relu(a: Tensor) -> Tensor:
    """Elementwise max(0, a), with slope 0 at 0. The result shows where a was positive, so a itself need not be kept."""
    out = as_torch(a).relu()
    return record(out, (a, lambda g: g.masked_fill(out <= 0, 0.0)))


def gelu(a: Tensor) -> Tensor:
    """Elementwise a·Φ(a), Φ the normal distribution function (Hendrycks and Gimpel 2016, arXiv:1606.08415).

    Slope Φ(a) + a·φ(a).
    """
    x = require_floating_point("gelu", as_torch(a))
    return record(torch.nn.functional.gelu(x), (a, lambda g: g * (_normal_cdf(x) + x * _normal_pdf(x))))


def _normal_cdf(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def _normal_pdf(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def where(condition: Any, a: Any, b: Any) -> Tensor:
    """Elements of a where the condition holds, of b elsewhere, all three broadcast; those not taken get gradient 0."""
    device = next((operand.device for operand in (a, b) if isinstance(operand, Tensor)), None)
    mask = as_torch(condition, torch.bool, device)

    def choose(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.where(mask, x, y)

    out, _, _, shape_a, shape_b = broadcast(choose, a, b)
    return record(
        out,
        (a, lambda g: unbroadcast(g.masked_fill(~mask, 0.0), shape_a)),
        (b, lambda g: unbroadcast(g.masked_fill(mask, 0.0), shape_b)),
    )


def to(a: Tensor, target: torch.dtype | torch.device | str) -> Tensor:
    """Copy of a in another dtype or on another device; gradients are converted back to a's own."""
    dtype, device = a.dtype, a.device
    wanted = (target, None) if isinstance(target, torch.dtype) else (None, target)
    return record(convert(a.data, *wanted), (a, lambda g: g.to(device=device, dtype=dtype)))
