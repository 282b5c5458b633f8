"""Checks of the tensors that an operation is given: one line for a learner, in place of an illegal memory access."""

from __future__ import annotations

from typing import Any

import torch

from mlsys_lab.errors import InputError

STATIC_SHARED_BYTES = 48 * 1024
"""Shared memory that a block may declare in its source; more has to be asked for at the launch."""


def together(dtypes: tuple[torch.dtype, ...], **tensors: torch.Tensor) -> torch.device:
    """The device of tensors that an operation takes together: dense, of one dtype out of `dtypes`, on one device.

    `InputError` names the first that is not.
    """
    first_name, first = next(iter(tensors.items()))
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise InputError(f"{name} must be a tensor of torch", got=type(tensor).__name__)
        if tensor.layout != torch.strided:
            raise InputError(f"{name} is not dense", got=tensor.layout, help=f"{name}.to_dense()")
        if tensor.dtype not in dtypes:
            raise InputError(f"dtype of {name}", got=tensor.dtype, expected=" or ".join(map(str, dtypes)))
        if tensor.dtype != first.dtype:
            raise InputError(f"{first_name} and {name} have two dtypes", got=f"{first.dtype} and {tensor.dtype}")
        if tensor.device != first.device:
            raise InputError(f"{first_name} and {name} are on two devices", got=f"{first.device} and {tensor.device}")
    return first.device


def alike(dtypes: tuple[torch.dtype, ...], **tensors: torch.Tensor) -> torch.device:
    """The device of tensors as in `together`, which must also be contiguous; InputError names the first that is not."""
    device = together(dtypes, **tensors)
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise InputError(f"{name} is not contiguous", got=f"strides {tensor.stride()}", help=f"{name}.contiguous()")
    return device


def integers(like: torch.Tensor, **tensors: torch.Tensor) -> None:
    """Raise InputError naming the first that is no tensor of integers, in contiguous rows, on the device of `like`."""
    for name, tensor in tensors.items():
        device = together((torch.int32, torch.int64), **{name: tensor})
        if device != like.device:
            raise InputError(f"device of {name}", got=device, expected=like.device)
        in_rows(**{name: tensor})


def in_rows(**tensors: torch.Tensor) -> None:
    """Raise InputError naming the first tensor whose last dimension's elements do not lie side by side."""
    for name, tensor in tensors.items():
        if tensor.ndim and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
            raise InputError(
                f"the last dimension of {name} is not contiguous",
                got=f"strides {tensor.stride()}",
                help=f"{name}.contiguous()",
            )


def of_rank(rank: int, **tensors: torch.Tensor) -> None:
    """Raise InputError naming the first tensor that does not have `rank` dimensions."""
    for name, tensor in tensors.items():
        if tensor.ndim != rank:
            raise InputError(f"dimensions of {name}", got=f"shape {tuple(tensor.shape)}", expected=f"{rank} of them")


def of_shape(shape: tuple[int, ...], **tensors: torch.Tensor) -> None:
    """Raise InputError naming the first tensor that does not have this shape."""
    for name, tensor in tensors.items():
        if tuple(tensor.shape) != tuple(shape):
            raise InputError(f"shape of {name}", got=tuple(tensor.shape), expected=tuple(shape))


def known_step(step: str, steps: Any) -> None:
    """Raise InputError unless `step` is among an operation's `steps`."""
    if step not in steps:
        raise InputError("unknown step", got=repr(step), expected="one of " + ", ".join(steps))


def fits_shared_memory(size_bytes: int, what: str, limit_bytes: int = STATIC_SHARED_BYTES) -> None:
    """Raise InputError where `what` needs more shared memory than a block may have."""
    if size_bytes > limit_bytes:
        raise InputError(
            f"{what} is too large for shared memory", got=f"{size_bytes} bytes", expected=f"at most {limit_bytes}"
        )
