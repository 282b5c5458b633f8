"""Tensors that lab 09's calls give to the learner's code and take from it, and what must stay as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.values import array, describe_value
from mlsys_lab.errors import InputError


def copy_tensors(arrays: Arrays, *names: str) -> list[torch.Tensor]:
    """Copies of arrays as tensors."""
    return [torch.from_numpy(arrays[name]).clone() for name in names]


def require_tensor(name: str, got: Any, shape: tuple[int, ...]) -> torch.Tensor:
    """A result on which more is to be computed; InputError for anything but a tensor of this shape."""
    if not isinstance(got, torch.Tensor):
        raise InputError(f"{name} gives no tensor", got=describe_value(got), expected="a torch.Tensor")
    if got.shape != shape:
        raise InputError(f"{name} gives a tensor of the wrong shape", got=str(tuple(got.shape)), expected=str(shape))
    return got


def tensor_values(name: str, got: Any) -> np.ndarray:
    """The numbers of a result that is a tensor; InputError for anything else, on which later tasks could not work."""
    if got is not None and not isinstance(got, torch.Tensor):
        raise InputError(f"{name} is not a tensor", got=describe_value(got), expected="a torch.Tensor")
    return array(name, got)


def refuse_change(name: str, tensor: torch.Tensor, given: np.ndarray, *, wants: bool = False) -> None:
    """Raise InputError where a tensor that the learner's code was given has other values than given.

    wants: whether it was given wanting a gradient, which it still must, and must not else.
    """
    if tensor.requires_grad != wants:
        got = f"it wants {'no gradient any more' if wants else 'a gradient'} after the call"
        raise InputError(f"your code changes its input {name}", got=got, help="detach() gives a tensor of your own")
    if not np.array_equal(tensor.detach().numpy(), given, equal_nan=True):
        raise InputError(f"your code changes its input {name}", got="other values after the call")


def go_back(name: str, result: torch.Tensor, gradient: np.ndarray, *, again: bool = False) -> None:
    """Go back from a result, `again` if this is not the last time; InputError where autograd has lost the way."""
    if not result.requires_grad:
        raise InputError(f"{name} leads back to nothing", got="no gradient wanted", help="was it detached?")
    given = torch.from_numpy(gradient).clone()
    result.backward(given, retain_graph=again)  # type: ignore[no-untyped-call]
    refuse_change(f"the gradient of what {name} gives", given, gradient)
