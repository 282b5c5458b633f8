"""Reductions over axes; the gradient of a result is spread over the elements that were reduced to it.

axis is an int, a sequence of ints or None for all; keepdims leaves reduced axes in place with length 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from operator import index

import torch

from mlsys_lab.autograd.base import Axes, Result, TensorBase
from mlsys_lab.autograd.storage import require_floating_point
from mlsys_lab.errors import InputError


def resolve_axes(x: torch.Tensor, axis: Axes) -> tuple[int, ...]:
    """The axes to reduce as non-negative numbers, counted from the front; all axes of x for None."""
    try:
        chosen = (
            range(x.ndim) if axis is None else [index(i) for i in (axis if isinstance(axis, Iterable) else (axis,))]
        )
    except TypeError:
        raise InputError("an axis is a whole number", got=axis, expected=f"axes of shape {tuple(x.shape)}") from None
    if any(not -x.ndim <= i < x.ndim for i in chosen):
        raise InputError("no such axis", got=axis, expected=f"axes of shape {tuple(x.shape)}")
    axes = tuple(sorted(i % x.ndim for i in chosen))
    if len(set(axes)) < len(axes):
        raise InputError("an axis is named twice", got=axis, expected="each axis once")
    return axes


def _keepdims_shape(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    """Shape with each of `axes` set to length 1, in which a reduced array broadcasts against its source."""
    return tuple(1 if i in axes else n for i, n in enumerate(shape))


def sum(a: TensorBase, axis: Axes = None, keepdims: bool = False) -> Result:
    """Sum over axes. Every element gets the gradient of its sum, as a broadcast view that takes no memory."""
    x = a.data
    axes = resolve_axes(x, axis)
    shape, kept = x.shape, _keepdims_shape(x.shape, axes)
    out = x.sum(axes, keepdim=keepdims) if axes else x.clone()
    return out, (a, lambda g: g.reshape(kept).expand(shape))


def mean(a: TensorBase, axis: Axes = None, keepdims: bool = False) -> Result:
    """Arithmetic mean over axes; NaN over no elements."""
    x = require_floating_point("mean", a.data)
    axes = resolve_axes(x, axis)
    shape, kept = x.shape, _keepdims_shape(x.shape, axes)
    count = math.prod(shape[i] for i in axes)
    out = x.mean(axes, keepdim=keepdims) if axes else x.clone()
    return out, (a, lambda g: (g / count).reshape(kept).expand(shape))


def max(a: TensorBase, axis: Axes = None, keepdims: bool = False) -> Result:
    """Largest element over axes. The gradient is split equally among ties. Raises InputError over no elements."""
    x = a.data
    axes = resolve_axes(x, axis)
    kept = _keepdims_shape(x.shape, axes)
    if any(x.shape[i] == 0 for i in axes):
        raise InputError("max over no elements", got=f"shape {tuple(x.shape)}, axis {axis}")
    out = x.amax(axes, keepdim=keepdims) if axes else x.clone()

    def max_vjp(g: torch.Tensor) -> torch.Tensor:
        winners = x == out.reshape(kept)
        return g.reshape(kept) * winners / winners.sum(axes, keepdim=True) if axes else g

    return out, (a, max_vjp)


def var(a: TensorBase, axis: Axes = None, keepdims: bool = False, correction: int = 1) -> Result:
    """Variance over axes with divisor n - correction: 1 for the unbiased estimate, 0 as layer norm takes it."""
    x = require_floating_point("var", a.data)
    axes = resolve_axes(x, axis)
    if not axes:
        raise InputError("variance needs an axis", got=f"shape {tuple(x.shape)}")
    kept = _keepdims_shape(x.shape, axes)
    divisor = math.prod(x.shape[i] for i in axes) - correction
    if divisor <= 0:
        raise InputError("variance over too few elements", got=divisor + correction, expected=f"above {correction}")
    out = x.var(axes, correction=correction, keepdim=keepdims)
    return out, (a, lambda g: g.reshape(kept) * (x - x.mean(axes, keepdim=True)) * (2 / divisor))
