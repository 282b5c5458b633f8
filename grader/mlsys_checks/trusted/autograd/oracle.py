"""What the autograd lab's oracles share: torch in double precision, differentiated by torch itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch


def leaf(values: np.ndarray, *, wanted: bool = True) -> torch.Tensor:
    """An input of the oracle: a double-precision torch tensor that torch itself differentiates."""
    return torch.tensor(values, dtype=torch.float64, requires_grad=wanted)


def gradients(result: torch.Tensor, of: Sequence[torch.Tensor], g: np.ndarray) -> tuple[torch.Tensor, ...]:
    """The oracle's backward pass: torch's gradients of `result` for the array `g`; zeros where nothing flows."""
    # The slope of Σ g · result is the same, and asking torch for it this way spares the import of sympy, 0.3 s.
    total = (result * torch.from_numpy(np.asarray(g)).to(result.dtype)).sum()
    return torch.autograd.grad(total, of, retain_graph=True, allow_unused=True, materialize_grads=True)


def answer(tensor: torch.Tensor, dtype: np.dtype | type) -> np.ndarray:
    """The oracle's result in the dtype that the learner's is to have."""
    return np.asarray(tensor.detach().numpy()).astype(dtype)
