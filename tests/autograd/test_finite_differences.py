from __future__ import annotations

import pytest
import torch

from mlsys_lab.autograd import Tensor, gradcheck, record
from mlsys_lab.errors import InputError


def leaf(*shape, draw):
    return Tensor(draw(*shape), requires_grad=True)


def test_right_gradients_pass(draw):
    assert gradcheck(lambda a, b: (a @ b).softmax(), leaf(3, 4, draw=draw), leaf(4, 2, draw=draw)) < 1e-8


@pytest.mark.parametrize(
    "wrong",
    [
        lambda g, x: g * x,  # a forgotten factor
        lambda g, x: -2 * g * x,  # a sign
        lambda g, x: 2 * (g * x).sum() * torch.ones_like(x),  # elements mixed up
        lambda g, x: 2 * g * x * 1.001,  # a little off
    ],
)
def test_wrong_gradients_are_found(draw, wrong):
    def square(a):
        x = a.data
        return record(x * x, (a, lambda g: wrong(g, x)))

    assert gradcheck(square, leaf(3, 4, draw=draw)) > 1e-4


def test_a_gradient_that_never_arrives_is_found(draw):
    assert gradcheck(lambda a, b: a + b.detach(), leaf(2, draw=draw), leaf(2, draw=draw)) > 0.1


def test_inputs_are_left_as_they_were(draw):
    x, constant = leaf(2, 3, draw=draw), Tensor(draw(2, 3))
    before = x.data.clone()
    assert gradcheck(lambda a, c: (a * c).exp(), x, constant) < 1e-6
    assert torch.equal(x.data, before) and x.grad is None and constant.grad is None


def test_views_as_inputs(draw):
    assert gradcheck(Tensor.exp, Tensor(draw(4, 3).T, requires_grad=True)) < 1e-6


def test_float32_is_refused():
    with pytest.raises(InputError, match="float64"):
        gradcheck(Tensor.exp, Tensor([1.0], requires_grad=True))
