"""What the autograd calls share: torch's autograd switched off, arrays into and out of the learner's tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from mlsys_lab.checks.learner.spec import Arrays
from mlsys_lab.errors import InputError

storage_only = torch.inference_mode()
"""Decorates every call: in inference mode torch records nothing, so all gradients come from the learner's engine."""


def inputs_of(artifact: Any, arrays: Arrays, *names: str) -> list[Any]:
    """The named arrays as inputs of the learner's engine that want a gradient."""
    return [artifact.Tensor(torch.from_numpy(arrays[name]), requires_grad=True) for name in names]


def array(name: str, got: Any) -> np.ndarray:
    """The numbers of a torch.Tensor, or of the engine's tensor; `InputError` says what it is instead."""
    if got is None:
        raise InputError(f"{name} is None", expected="a torch.Tensor", help="no gradient reached it")
    got = got if isinstance(got, torch.Tensor) else getattr(got, "data", got)
    if not isinstance(got, torch.Tensor):
        raise InputError(f"{name} is not a tensor", got=type(got).__name__, expected="a torch.Tensor")
    return np.array(got.cpu().numpy())


def number(name: str, got: Any) -> np.ndarray:
    """A plain number as a float64 array of no axes."""
    if isinstance(got, bool) or not isinstance(got, int | float):
        raise InputError(f"{name} is not a plain number", got=type(got).__name__, expected="float")
    return np.array(float(got))


def whole(name: str, got: Any) -> np.ndarray:
    """A whole number as an int64 array of no axes."""
    if isinstance(got, bool) or not isinstance(got, int):
        raise InputError(f"{name} is not a whole number", got=f"{type(got).__name__} {got!r}"[:80], expected="int")
    if abs(got) >= 2**63:
        raise InputError(f"{name} is out of range", got=got, expected="less than 2**63")
    return np.array(got, dtype=np.int64)
