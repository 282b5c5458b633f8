"""Operations on the learner's engine against torch, forward and backward, at the extremes too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from mlsys_lab.capstone import Stack
from mlsys_lab.models.positions import rotary_angles, rotate

ANGLES = rotary_angles(torch.arange(5), 6, 100.0, torch.zeros(1, dtype=torch.float64))


def masked_softmax(x: torch.Tensor) -> torch.Tensor:
    """Softmax of half of each score, over itself and the past."""
    return F.softmax((x / 2).masked_fill(torch.ones(6, 6, dtype=torch.bool).triu(1), -torch.inf), -1)


CALLS: dict[str, tuple[Callable[..., Any], Callable[..., torch.Tensor], tuple[tuple[int, ...], ...]]] = {
    "softmax": (lambda ours, engine, x: ours.causal_softmax(engine, x, 0.5), masked_softmax, ((2, 6, 6),)),
    "silu_mul": (lambda ours, *args: ours.silu_mul(*args), lambda gate, up: F.silu(gate) * up, ((5, 6), (5, 6))),
    "rms_norm": (
        lambda ours, *args: ours.rms_norm(*args, 1e-5),
        lambda x, weight: F.rms_norm(x, (6,), weight, eps=1e-5),
        ((5, 6), (6,)),
    ),
    "rotary": (
        lambda ours, *args: ours.rotary(*args, ANGLES),
        lambda x: rotate(x, ANGLES),
        ((3, 5, 6),),
    ),
}


@pytest.mark.parametrize(("operation", "oracle", "shapes"), CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("scale", [0.0, 1.0, 900.0])
def test_values_and_gradients_are_torchs(
    stack: Stack,
    operation: Callable[..., Any],
    oracle: Callable[..., torch.Tensor],
    shapes: tuple[tuple[int, ...], ...],
    scale: float,
) -> None:
    generator = torch.Generator().manual_seed(2)
    data = [scale * torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes]
    ours = [stack.engine.Tensor(one, requires_grad=True) for one in data]
    theirs = [one.clone().requires_grad_() for one in data]
    result, expected = operation(stack.capstone, stack.engine, *ours), oracle(*theirs)
    torch.testing.assert_close(result.data, expected.detach(), rtol=1e-12, atol=1e-12)
    upstream = torch.randn(expected.shape, dtype=torch.float64, generator=generator)
    result.backward(upstream)
    expected.backward(upstream)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-9, atol=1e-9)
