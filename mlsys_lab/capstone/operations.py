"""Operations of a decoder that lab 01's engine does not have, made of those that it has.

An engine is a layer with `Tensor` and `record`; every function works on the learner's, the solved lab's and the
package's. Constants are torch tensors, through which no gradient flows.

Dimension letters: T tokens, D features, H head dimension, ... any leading axes.
"""

from __future__ import annotations

from typing import Any

import torch

from mlsys_lab.models.positions import rotate

Tensor = Any
"""A `Tensor` of whichever engine the stack has."""


def softmax(scores: Tensor) -> Tensor:
    """Softmax over the last axis: (..., D) -> (..., D). Its maximum is a constant: any shift gives the same result."""
    shifted = (scores - scores.data.amax(-1, keepdim=True)).exp()
    return shifted / shifted.sum(-1, keepdims=True)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / √(mean of squares + eps) · weight: (..., D), (D,) -> (..., D). Zhang and Sennrich (arXiv:1910.07467)."""
    mean_square = (x * x).mean(-1, keepdims=True)
    return x * (mean_square + eps) ** -0.5 * weight


def silu(x: Tensor) -> Tensor:
    """x · sigmoid(x), elementwise. The sigmoid is (1 + tanh(x/2)) / 2, which cannot overflow as exp(-x) can."""
    return x * ((x * 0.5).tanh() * 0.5 + 0.5)


def rotary(engine: Any, x: Tensor, angles: torch.Tensor) -> Tensor:
    """Rotary embedding: (..., T, H), angles (2, ..., T, H/2) -> (..., T, H); its VJP rotates back by the angles.

    The engine has no concatenation, so the rotation, which is linear, is recorded as an operation of its own.
    """
    back = angles * torch.tensor([1.0, -1.0], dtype=angles.dtype).view(2, *[1] * (angles.ndim - 1))
    return engine.record(rotate(x.data, angles), (x, lambda g: rotate(g, back)))
