"""What torch is used for here: arrays and the kernels that compute on them. Its own autograd stays out of it."""

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
        except (TypeError, ValueError, RuntimeError) as problem:
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
    return move(data, dtype, device)


def move(tensor: torch.Tensor, dtype: torch.dtype | None, device: torch.device | str | None) -> torch.Tensor:
    """The tensor in this dtype on this device; itself if it is so already. MissingToolError without such a device."""
    try:
        return tensor.to(device=device, dtype=dtype)
    except torch.OutOfMemoryError:
        raise
    except (AssertionError, RuntimeError) as problem:
        raise MissingToolError(
            "cannot put a tensor there", got=device, expected="a device of this machine", help=first_line(problem)
        ) from problem


def require_real(operation: str, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or InputError if it holds integers or bools."""
    if tensor.is_floating_point():
        return tensor
    raise InputError(
        f"{operation} needs real numbers",
        got=f"dtype {tensor.dtype}",
        expected="float32 or float64",
        help="tensor.to()",
    )


def first_line(problem: Exception) -> str:
    """What torch said, without the stack that it may append."""
    return str(problem).splitlines()[0]
