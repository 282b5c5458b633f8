"""Operands of different shapes: broadcasting in the forward pass, summation in the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from operator import matmul
from typing import Any, NoReturn

import torch

from mlsys_lab.autograd.base import TensorBase, as_torch
from mlsys_lab.autograd.storage import first_line
from mlsys_lab.errors import InputError

Shape = tuple[int, ...]

BROADCASTABLE = "lengths equal or 1, counted from the last axis"


def operand_data(operand: Any) -> torch.Tensor | int | float:
    """The torch tensor behind an operand; plain numbers are returned as they are and take the other operand's dtype."""
    if isinstance(operand, TensorBase):
        return operand.data
    if isinstance(operand, (int, float)):
        return operand
    return as_torch(operand)


def apply_binary(
    function: Callable[..., torch.Tensor], a: Any, b: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Shape, Shape]:
    """Apply a binary function; returns the result, both operands' storage and both operands' shapes.

    Raises InputError when shapes do not broadcast, devices differ, or dtypes differ where a gradient has to cross.
    """
    x: Any = operand_data(a)
    y: Any = operand_data(b)
    try:
        out = function(x, y)
    except RuntimeError as problem:
        rule = "(..., n, k) and (..., k, m)" if function is matmul else BROADCASTABLE
        raise_operand_error(function.__name__, problem, x, y, expected=rule)
    for operand in (a, b):
        if isinstance(operand, TensorBase) and operand.requires_grad and operand.data.dtype != out.dtype:
            raise InputError(
                f"{function.__name__}: operands of different dtypes",
                got=f"{_describe(x)} and {_describe(y)}",
                expected="one dtype",
                help=f"convert one with tensor.to({out.dtype})",
            )
    return out, x, y, getattr(x, "shape", ()), getattr(y, "shape", ())


def raise_operand_error(operation: str, problem: Exception, *operands: Any, expected: str | None = None) -> NoReturn:
    """Raise InputError that names the operands `operation` failed on; re-raise an out-of-memory error unchanged."""
    if isinstance(problem, torch.OutOfMemoryError):
        raise problem
    got = " and ".join(_describe(operand) for operand in operands)
    raise InputError(f"{operation}: {first_line(problem)}", got=got, expected=expected) from problem


def unbroadcast(grad: torch.Tensor, shape: Shape) -> torch.Tensor:
    """Sum a gradient down to the shape that was broadcast: the adjoint of broadcasting.

    An element that was used n times receives the sum of n gradients. Axes that broadcasting put in front and axes of
    length 1, which it may have stretched, are the ones to sum over.
    """
    if grad.shape == shape:
        return grad
    lead = grad.ndim - len(shape)
    stretched = [lead + i for i, n in enumerate(shape) if n == 1]
    return grad.sum([*range(lead), *stretched], keepdim=True).reshape(shape)


def _describe(operand: Any) -> str:
    if not isinstance(operand, torch.Tensor):
        return repr(operand)
    dtype = str(operand.dtype).removeprefix("torch.")
    return f"{dtype} {tuple(operand.shape)}" + ("" if operand.device.type == "cpu" else f" on {operand.device}")
