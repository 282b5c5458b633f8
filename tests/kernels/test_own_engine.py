"""The operators on the tape of the course's own engine, in the place of its operations."""

from __future__ import annotations

from collections.abc import Callable

import torch

from mlsys_lab.autograd import Tensor, functional, record
from mlsys_lab.kernels import cross_entropy as cross_entropy_kernels
from mlsys_lab.kernels import norms as norm_kernels
from mlsys_lab.kernels import softmax as softmax_kernels
from tests.kernels.closeness import assert_near

IMPORTED = (cross_entropy_kernels, norm_kernels, softmax_kernels)  # registers their operators with torch
OPERATORS = torch.ops.mlsys_lab


def softmax(a: Tensor) -> Tensor:
    y = OPERATORS.softmax(a.data, "one_pass")
    return record(y, (a, lambda dy: OPERATORS.softmax_backward(dy.contiguous(), y, "one_pass")))


def layer_norm(a: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    y, mean, r = OPERATORS.norm(a.data, weight.data, bias.data, 1e-5, "persistent")

    def gradient(which: int) -> Callable[[torch.Tensor], torch.Tensor]:
        def vjp(dy: torch.Tensor) -> torch.Tensor:
            return OPERATORS.norm_backward(dy.contiguous(), a.data, weight.data, mean, r, True, "persistent")[which]

        return vjp

    return record(y, (a, gradient(0)), (weight, gradient(1)), (bias, gradient(2)))


def cross_entropy(logits: Tensor, targets: torch.Tensor) -> Tensor:
    losses, log_sums = OPERATORS.cross_entropy(logits.data, targets, -100)

    def vjp(d_loss: torch.Tensor) -> torch.Tensor:
        d_losses = (d_loss / len(targets)).expand(len(targets)).contiguous()
        return OPERATORS.cross_entropy_backward(d_losses, logits.data, targets, log_sums, -100)

    return record(losses.mean(), (logits, vjp))


def test_a_step_through_all_of_them_is_that_of_the_engines_own_operations() -> None:
    x, w, b = torch.randn(7, 67), torch.rand(67), torch.randn(67)
    targets = torch.arange(7)
    found = []
    for norm, soft, loss in (
        (layer_norm, softmax, cross_entropy),
        (functional.layer_norm, functional.softmax, functional.cross_entropy),
    ):
        leaves = [Tensor(one.clone(), requires_grad=True) for one in (x, w, b)]
        total = loss(soft(norm(*leaves)) * 5, targets)
        total.backward()
        found.append([total.data, *(leaf.grad for leaf in leaves)])
    for mine, other in zip(*found, strict=True):
        assert_near(mine, other.double())
