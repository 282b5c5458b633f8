"""Data for `Tensor`: torch provides storage and kernels; torch's autograd is never used."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from mlsys_lab.errors import InputError, MissingToolError


def to_storage(data: Any, dtype: torch.dtype | None, device: torch.device | str | None) -> torch.Tensor:
    """A torch tensor of these numbers: the one given where dtype and device agree already, else a copy.

    Raises InputError for what holds no numbers and for tensors that torch's autograd watches.
    """
    if not isinstance(data, torch.Tensor):
        if isinstance(data, np.ndarray):
            data = np.array(data)  # a copy of our own: torch cannot hold negative strides nor read-only memory
        try:
            data = torch.as_tensor(data)
        except (TypeError, ValueError, RuntimeError, OverflowError) as problem:
            raise InputError(
                "cannot make a tensor of this",
                got=f"{type(data).__name__} ({first_line(problem)})",
                expected="a number, nested lists of numbers, a numpy array or a torch tensor",
            ) from problem
    elif data.requires_grad:
        raise InputError(
            "torch's autograd must not watch the storage of a Tensor",
            got="a torch tensor with requires_grad=True",
            help="pass tensor.detach()",
        )
    return convert(data, dtype, device)


def convert(tensor: torch.Tensor, dtype: torch.dtype | None, device: torch.device | str | None) -> torch.Tensor:
    """Convert a torch tensor to a dtype and device (None keeps them); MissingToolError if there is no such device."""
    if not isinstance(dtype, torch.dtype | None):
        raise InputError("not a dtype", got=dtype, expected="one of torch's, such as torch.float32")
    try:
        return tensor.to(device=device, dtype=dtype)
    except torch.OutOfMemoryError:
        raise
    except (AssertionError, RuntimeError) as problem:
        raise MissingToolError(
            "cannot put a tensor there", got=device, expected="a device of this machine", help=first_line(problem)
        ) from problem


def require_floating_point(operation: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor if its elements are floating point; InputError naming `operation` if they are ints or bools."""
    if tensor.is_floating_point():
        return tensor
    raise InputError(
        f"{operation} needs real numbers",
        got=f"dtype {tensor.dtype}",
        expected="float32 or float64",
        help="tensor.to()",
    )


def first_line(problem: Exception) -> str:
    """The first line of an exception's text, without the C++ stack that torch may append."""
    return str(problem).splitlines()[0]
