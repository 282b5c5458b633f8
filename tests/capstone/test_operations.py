"""Operations on the learner's engine against torch, forward and backward, at the extremes too."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from mlsys_lab.capstone import Stack
from mlsys_lab.capstone import operations as ours
from mlsys_lab.models.positions import rotary_angles, rotate

ANGLES = rotary_angles(torch.arange(5), 6, 100.0, torch.zeros(1, dtype=torch.float64))


@pytest.mark.parametrize(
    ("operation", "oracle"),
    [
        (lambda engine, x: ours.softmax(x), partial(F.softmax, dim=-1)),
        (lambda engine, x: ours.silu(x), F.silu),
        (
            lambda engine, x: ours.rms_norm(x, engine.Tensor(torch.ones(6).double()), 1e-5),
            lambda x: F.rms_norm(x, (6,), eps=1e-5),
        ),
        (lambda engine, x: ours.rotary(engine, x, ANGLES), lambda x: rotate(x, ANGLES)),
    ],
    ids=["softmax", "silu", "rms_norm", "rotary"],
)
@pytest.mark.parametrize("scale", [0.0, 1.0, 900.0])
def test_value_and_gradient_are_torchs(
    stack: Stack,
    operation: Callable[[Any, Any], Any],
    oracle: Callable[[torch.Tensor], torch.Tensor],
    scale: float,
) -> None:
    generator = torch.Generator().manual_seed(2)
    data = scale * torch.randn(3, 5, 6, dtype=torch.float64, generator=generator)
    upstream = torch.randn(3, 5, 6, dtype=torch.float64, generator=generator)
    x = stack.engine.Tensor(data, requires_grad=True)
    theirs = data.clone().requires_grad_()
    result, expected = operation(stack.engine, x), oracle(theirs)
    torch.testing.assert_close(result.data, expected.detach(), rtol=1e-12, atol=1e-12)
    result.backward(upstream)
    expected.backward(upstream)
    torch.testing.assert_close(x.grad, theirs.grad, rtol=1e-9, atol=1e-11)


def test_a_masked_score_has_no_weight_and_no_gradient(stack: Stack) -> None:
    scores = stack.engine.Tensor(torch.zeros(2, 2, dtype=torch.float64), requires_grad=True)
    weights = ours.softmax(scores + torch.tensor([[0.0, -torch.inf], [0.0, 0.0]]))
    assert weights.data.tolist() == [[1, 0], [0.5, 0.5]]
    weights.backward(torch.tensor([[1.0, 7.0], [1.0, 3.0]], dtype=torch.float64))
    torch.testing.assert_close(scores.grad, torch.tensor([[0.0, 0.0], [-0.5, 0.5]], dtype=torch.float64))
