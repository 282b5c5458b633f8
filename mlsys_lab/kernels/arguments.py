"""Argument checks for kernels: a one-line error in place of an illegal memory access."""

from __future__ import annotations

from typing import Any

import torch

from mlsys_lab.errors import InputError

STATIC_SHARED_BYTES = 48 * 1024
"""Shared memory that a thread block may declare statically; more must be requested at launch."""


def check_tensors(dtypes: tuple[torch.dtype, ...], **tensors: torch.Tensor) -> torch.device:
    """Check that tensors are dense and share a device and one of `dtypes`; return the device.

    Raises InputError naming the first that does not fit.
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


def check_contiguous(dtypes: tuple[torch.dtype, ...], **tensors: torch.Tensor) -> torch.device:
    """Check tensors as `check_tensors` does, and that they are contiguous; return their device."""
    device = check_tensors(dtypes, **tensors)
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise InputError(f"{name} is not contiguous", got=f"strides {tensor.stride()}", help=f"{name}.contiguous()")
    return device


def check_integers(like: torch.Tensor, **tensors: torch.Tensor) -> None:
    """Raise InputError naming the first that is not an integer tensor with contiguous rows on the device of `like`."""
    for name, tensor in tensors.items():
        device = check_tensors((torch.int32, torch.int64), **{name: tensor})
        if device != like.device:
            raise InputError(f"device of {name}", got=device, expected=like.device)
        check_rows(**{name: tensor})


def check_rows(**tensors: torch.Tensor) -> None:
    """Raise InputError naming the first tensor whose last dimension is not contiguous."""
    for name, tensor in tensors.items():
        if tensor.ndim and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
            raise InputError(
                f"the last dimension of {name} is not contiguous",
                got=f"strides {tensor.stride()}",
                help=f"{name}.contiguous()",
            )


def check_rank(rank: int, **tensors: torch.Tensor) -> None:
    """Raise InputError naming the first tensor that does not have `rank` dimensions."""
    for name, tensor in tensors.items():
        if tensor.ndim != rank:
            raise InputError(f"dimensions of {name}", got=f"shape {tuple(tensor.shape)}", expected=f"{rank} of them")


def check_shape(shape: tuple[int, ...], **tensors: torch.Tensor) -> None:
    """Raise InputError naming the first tensor that does not have this shape."""
    for name, tensor in tensors.items():
        if tuple(tensor.shape) != tuple(shape):
            raise InputError(f"shape of {name}", got=tuple(tensor.shape), expected=tuple(shape))


def check_step(step: str, steps: Any) -> None:
    """Raise InputError unless `step` is among an operation's `steps`."""
    if step not in steps:
        raise InputError("unknown step", got=repr(step), expected="one of " + ", ".join(steps))


def check_shared_memory(size_bytes: int, what: str, limit_bytes: int = STATIC_SHARED_BYTES) -> None:
    """Raise InputError if `what` needs more shared memory than a thread block may have."""
    if size_bytes > limit_bytes:
        raise InputError(
            f"{what} is too large for shared memory", got=f"{size_bytes} bytes", expected=f"at most {limit_bytes}"
        )
