"""What the autograd lab's checks share: torch's autograd switched off, and arrays out of the learner's tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from mlsys_lab.errors import InputError

storage_only = torch.inference_mode()
"""Decorates every `run`: in inference mode torch records nothing, so all gradients come from the learner's engine."""


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


def leaf(values: np.ndarray, *, wanted: bool = True) -> torch.Tensor:
    """An input of the oracle: a double-precision torch tensor that torch itself differentiates."""
    return torch.tensor(values, dtype=torch.float64, requires_grad=wanted)


def gradients(result: torch.Tensor, of: Sequence[torch.Tensor], g: np.ndarray) -> tuple[torch.Tensor, ...]:
    """The oracle's way back: torch's gradients of `result` for the array `g`; zeros where nothing flows."""
    seed = torch.from_numpy(np.asarray(g)).to(result.dtype)
    return torch.autograd.grad(result, of, seed, retain_graph=True, allow_unused=True, materialize_grads=True)


def answer(tensor: torch.Tensor, dtype: np.dtype | type) -> np.ndarray:
    """The oracle's result in the dtype that the learner's is to have."""
    return np.asarray(tensor.detach().numpy()).astype(dtype)
