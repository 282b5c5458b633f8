"""Operations that move elements and change none. Their vjps move gradients back; where an element was used more than
once (broadcasting, repeated indices) its gradients are added up.

Like torch's, results of reshape, permute, transpose, broadcast_to and slicing are views of the operand's storage.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from mlsys_lab.autograd.base import Result, TensorBase, as_torch
from mlsys_lab.autograd.ops.broadcasting import raise_operand_error, unbroadcast
from mlsys_lab.errors import InputError


def reshape(a: TensorBase, *shape: Any) -> Result:
    """View of a in another shape, elements in unchanged order; one length may be -1."""
    shape = _flatten(shape)
    old = a.data.shape
    try:
        out = a.data.reshape(shape)
    except RuntimeError as problem:
        raise_operand_error(f"reshape to {shape}", problem, a.data)
    return out, (a, lambda g: g.reshape(old))


def permute(a: TensorBase, *axes: Any) -> Result:
    """View of a with its axes reordered: axis i of the result is axis axes[i] of a."""
    axes = _flatten(axes)
    ndim = a.data.ndim
    if sorted(i % ndim if -ndim <= i < ndim else ndim for i in axes) != list(range(ndim)):
        raise InputError("permute needs every axis once", got=axes, expected=f"an order of {tuple(range(ndim))}")
    inverse = [0] * ndim
    for new, old in enumerate(axes):
        inverse[old % ndim] = new
    return a.data.permute(axes), (a, lambda g: g.permute(inverse))


def transpose(a: TensorBase, first: int = -2, second: int = -1) -> Result:
    """View of a with two axes exchanged, the last two by default."""
    try:
        out = a.data.transpose(first, second)
    except IndexError as problem:
        raise_operand_error(f"transpose of axes {first} and {second}", problem, a.data)
    return out, (a, lambda g: g.transpose(first, second))


def broadcast_to(a: TensorBase, *shape: Any) -> Result:
    """View of a that repeats elements along new axes in front and along axes of length 1, with stride 0."""
    shape = _flatten(shape)
    old = a.data.shape
    try:
        out = a.data.broadcast_to(shape)
    except RuntimeError as problem:
        raise_operand_error(f"broadcast to {shape}", problem, a.data)
    return out, (a, lambda g: unbroadcast(g, old))


def cat(tensors: Sequence[TensorBase], axis: int = 0) -> Result:
    """Join tensors along an axis; the backward pass gives each one its slice of the gradient."""
    if isinstance(tensors, (TensorBase, torch.Tensor)) or not tensors:
        got = "a single tensor" if isinstance(tensors, (TensorBase, torch.Tensor)) else "no tensors"
        raise InputError("cat joins the tensors of a list", got=got, expected="at least one in a list")
    parts = [as_torch(tensor) for tensor in tensors]
    try:
        out = torch.cat(parts, axis)
    except (RuntimeError, IndexError) as problem:
        raise_operand_error(f"cat along axis {axis}", problem, *parts)
    lengths = [part.shape[axis] for part in parts]
    starts = itertools.accumulate(lengths, initial=0)
    return (
        out,
        *(
            (tensor, lambda g, start=start, length=length: g.narrow(axis, start, length))
            for tensor, start, length in zip(tensors, starts, lengths, strict=False)
        ),
    )


def getitem(a: TensorBase, index: Any) -> Result:
    """Index a tensor as a[index], with ints, slices, None, `...`, and arrays or lists of ints or bools.

    The vjp puts gradients where the elements came from; elements that an array of indices takes twice get the sum.
    """
    x = a.data
    shape = x.shape
    index = tuple(_index(i, x.device) for i in index) if isinstance(index, tuple) else _index(index, x.device)
    try:
        out = x[index]
    except (IndexError, ValueError, TypeError) as problem:
        raise_operand_error(f"getitem [{index}]", problem, x)
    parts = index if isinstance(index, tuple) else (index,)
    takes_once = not any(isinstance(part, torch.Tensor) for part in parts)

    def scatter(g: torch.Tensor) -> torch.Tensor:
        full = g.new_zeros(shape)
        if takes_once:
            full[index] = g
            return full
        source = torch.arange(full.numel(), device=g.device).reshape(shape)[index]  # where each element came from
        return full.reshape(-1).index_add_(0, source.reshape(-1), g.reshape(-1)).reshape(shape)

    return out, (a, scatter)


def _flatten(arguments: tuple[Any, ...]) -> tuple[int, ...]:
    """Flatten the arguments of a method that may be called as f(2, 3) or as f((2, 3))."""
    return tuple(arguments[0] if len(arguments) == 1 and not hasattr(arguments[0], "__index__") else arguments)


def _index(part: Any, device: torch.device) -> Any:
    """One part of an index as torch accepts it: Tensors and lists become torch tensors on `device`."""
    return as_torch(part, device=device) if isinstance(part, (TensorBase, np.ndarray, np.generic, list)) else part
