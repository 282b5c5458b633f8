"""Neural-network operations with a vjp of their own: more accurate or leaner than a chain of small operations.

Dimension letters: ... any leading axes, C classes or channels (the last axis), V rows of a table, N targets.
"""

from __future__ import annotations

from typing import Any

import torch

from mlsys_lab.autograd.base import Axes, Result, TensorBase, as_torch
from mlsys_lab.autograd.ops.broadcasting import raise_operand_error, unbroadcast
from mlsys_lab.autograd.ops.reduce import resolve_axes
from mlsys_lab.autograd.storage import require_floating_point
from mlsys_lab.errors import InputError


def _one_axis(name: str, x: torch.Tensor, axis: int) -> int:
    axes = resolve_axes(x, axis)
    if len(axes) != 1:
        raise InputError(f"{name} goes along one axis", got=axis, expected=f"an axis of shape {tuple(x.shape)}")
    return axes[0]


def softmax(a: TensorBase, axis: int = -1) -> Result:
    """Softmax eᵃ / Σeᵃ along an axis, with the maximum subtracted first. ∂a = s·(g - Σ g·s), s the result."""
    x = require_floating_point("softmax", as_torch(a))
    axis = _one_axis("softmax", x, axis)
    s = x.softmax(axis)

    def softmax_vjp(g: torch.Tensor) -> torch.Tensor:
        gs = g * s
        return gs - s * gs.sum(axis, keepdim=True)

    return s, (a, softmax_vjp)


def log_softmax(a: TensorBase, axis: int = -1) -> Result:
    """Logarithm of the softmax, a - log Σeᵃ, along an axis. ∂a = g - softmax(a)·Σg."""
    x = require_floating_point("log_softmax", as_torch(a))
    axis = _one_axis("log_softmax", x, axis)
    out = x.log_softmax(axis)
    return out, (a, lambda g: g - out.exp() * g.sum(axis, keepdim=True))


def logsumexp(a: TensorBase, axis: Axes = -1, keepdims: bool = False) -> Result:
    """Logarithm of the sum of exponentials, log Σeᵃ, over axes, without overflow. ∂a = g·softmax(a)."""
    x = require_floating_point("logsumexp", as_torch(a))
    axes = resolve_axes(x, axis)
    out = x.logsumexp(axes, keepdim=True) if axes else x.clone()
    result = out if keepdims else out.squeeze(axes)
    return result, (a, lambda g: g.reshape(out.shape) * (x - out).exp())


def cross_entropy(logits: TensorBase, targets: Any) -> Result:
    """Mean cross-entropy, -log softmax(logits)[target], of logits (..., C) and targets (...), ints in [0, C).

    ∂logits = (softmax(logits) - onehot(targets)) / N. Raises InputError for other shapes, dtypes, classes, or N = 0.
    """
    scores = require_floating_point("cross_entropy", as_torch(logits))
    classes = as_torch(targets, device=scores.device)
    if classes.is_floating_point() or classes.dtype == torch.bool:
        raise InputError("targets are class numbers", got=f"dtype {classes.dtype}", expected="integers")
    if not scores.shape or classes.shape != scores.shape[:-1] or classes.numel() == 0:
        raise InputError(
            "cross_entropy needs one target for each row of logits",
            got=f"logits {tuple(scores.shape)} and targets {tuple(classes.shape)}",
            expected="(..., C) and (...), at least one row",
        )
    log_p = scores.log_softmax(-1)  # (..., C)
    column = classes.long().unsqueeze(-1)  # (..., 1)
    try:
        loss = -log_p.gather(-1, column).mean()
    except RuntimeError as problem:
        raise_operand_error("cross_entropy", problem, log_p, classes, expected=f"classes 0 to {log_p.shape[-1] - 1}")

    def cross_entropy_vjp(g: torch.Tensor) -> torch.Tensor:
        scale = g / column.numel()
        grad = log_p.exp().mul_(scale)
        return grad.scatter_add_(-1, column, (-scale).expand(column.shape))

    return loss, (logits, cross_entropy_vjp)


def layer_norm(
    a: TensorBase, weight: TensorBase | None = None, bias: TensorBase | None = None, eps: float = 1e-5
) -> Result:
    """Layer norm, (a - mean) / √(var + eps) · weight + bias over the last axis: a (..., C), weight and bias (C,).

    With n the normalised input and h = g·weight: ∂a = (h - mean(h) - n·mean(h·n)) / σ (arXiv:1607.06450).
    """
    x = require_floating_point("layer_norm", as_torch(a))
    w, b = check_affine("layer_norm", x, weight, bias)
    centred = x - x.mean(-1, keepdim=True)  # (..., C)
    rstd = (centred.square().mean(-1, keepdim=True) + eps).rsqrt()  # (..., 1)
    normed = centred * rstd  # (..., C)
    out = normed if w is None else normed * w
    out = out if b is None else out + b

    def layer_norm_vjp(g: torch.Tensor) -> torch.Tensor:
        h = g if w is None else g * w
        return rstd * (h - h.mean(-1, keepdim=True) - normed * (h * normed).mean(-1, keepdim=True))

    channels = x.shape[-1:]
    return (
        out,
        (a, layer_norm_vjp),
        (weight, lambda g: unbroadcast(g * normed, channels)),
        (bias, lambda g: unbroadcast(g, channels)),
    )


def rms_norm(a: TensorBase, weight: TensorBase | None = None, eps: float = 1e-6) -> Result:
    """RMS norm, a / √(mean(a²) + eps) · weight over the last axis: a (..., C), weight (C,).

    With n the normalised input and h = g·weight: ∂a = (h - n·mean(h·n)) / rms (arXiv:1910.07467).
    """
    x = require_floating_point("rms_norm", as_torch(a))
    (w,) = check_affine("rms_norm", x, weight)
    rrms = (x.square().mean(-1, keepdim=True) + eps).rsqrt()  # (..., 1)
    normed = x * rrms  # (..., C)

    def rms_norm_vjp(g: torch.Tensor) -> torch.Tensor:
        h = g if w is None else g * w
        return rrms * (h - normed * (h * normed).mean(-1, keepdim=True))

    channels = x.shape[-1:]
    return (
        normed if w is None else normed * w,
        (a, rms_norm_vjp),
        (weight, lambda g: unbroadcast(g * normed, channels)),
    )


def check_affine(name: str, x: torch.Tensor, *parameters: TensorBase | None) -> list[torch.Tensor | None]:
    """The parameters' data; InputError unless each has one number per channel of x."""
    stored = [None if parameter is None else as_torch(parameter) for parameter in parameters]
    for parameter in stored:
        if x.shape[-1:] in [(), (0,)] or (parameter is not None and parameter.shape != x.shape[-1:]):
            raise InputError(
                f"{name}: weight and bias have one number per channel",
                got=f"input {tuple(x.shape)} and parameter {() if parameter is None else tuple(parameter.shape)}",
                expected="(..., C) and (C,), C at least 1",
            )
    return stored


def embedding(table: TensorBase, indices: Any) -> Result:
    """Look up rows of a table: table (V, C), indices (...) of ints in [0, V) -> (..., C).

    The gradient of a row is the sum over all positions that looked it up.
    """
    stored = as_torch(table)
    rows = as_torch(indices, device=stored.device)
    if rows.is_floating_point() or rows.dtype == torch.bool or stored.ndim != 2:
        raise InputError(
            "embedding takes rows of a table by number",
            got=f"table {tuple(stored.shape)} and indices of dtype {rows.dtype}",
            expected="table (V, C) and integers",
        )
    rows = rows.long()
    try:
        out = torch.nn.functional.embedding(rows, stored)
    except IndexError as problem:
        raise InputError(
            "a row that the table does not have",
            got=f"indices from {rows.min().item()} to {rows.max().item()}",
            expected=f"0 to {stored.shape[0] - 1}",
        ) from problem
    shape = stored.shape

    def embedding_vjp(g: torch.Tensor) -> torch.Tensor:
        return g.new_zeros(shape).index_add_(0, rows.reshape(-1), g.reshape(rows.numel(), shape[1]))

    return out, (table, embedding_vjp)


def dropout(a: TensorBase, p: float = 0.5) -> Result:
    """Zero each element with probability p and divide the others by 1 - p.

    Draws from torch's generator of the tensor's device; saves one byte per element for the backward pass.
    """
    if not 0 <= p < 1:
        raise InputError("dropout probability out of range", got=p, expected="0 <= p < 1")
    x = require_floating_point("dropout", as_torch(a))
    dropped = torch.rand_like(x) < p
    scale = 1 / (1 - p)
    out = x.masked_fill(dropped, 0.0).mul_(scale)
    return out, (a, lambda g: g.masked_fill(dropped, 0.0).mul_(scale))
