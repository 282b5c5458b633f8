from __future__ import annotations

import operator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mlsys_lab.autograd import Tensor, gelu, relu, where
from mlsys_lab.errors import InputError, MissingToolError

SHAPES = [(), (1,), (0,), (7,), (13, 5), (3, 0, 2), (2, 3, 1, 5)]
UNARY = {
    "exp": (Tensor.exp, torch.exp, False),
    "log": (Tensor.log, torch.log, True),
    "sqrt": (Tensor.sqrt, torch.sqrt, True),
    "tanh": (Tensor.tanh, torch.tanh, False),
    "sigmoid": (Tensor.sigmoid, torch.sigmoid, False),
    "relu": (Tensor.relu, torch.relu, False),
    "gelu": (Tensor.gelu, torch.nn.functional.gelu, False),
    "neg": (operator.neg, operator.neg, False),
    "square": (lambda x: x**2, lambda x: x**2, False),
    "inverse root": (lambda x: x**-0.5, lambda x: x**-0.5, True),
    "power of a number": (lambda x: 2.5**x, lambda x: 2.5**x, False),
    "constants": (lambda x: (3 - x) * 2 / 4 + 1 / x - x / 3, lambda x: (3 - x) * 2 / 4 + 1 / x - x / 3, True),
    "self": (lambda x: x * x + x / x - x, lambda x: x * x + x / x - x, True),
}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_unary(agree, draw, dtype, name, shape):
    ours, theirs, positive = UNARY[name]
    agree(ours, theirs, draw(*shape, dtype=dtype, positive=positive))


@pytest.mark.parametrize("op", [operator.add, operator.sub, operator.mul, operator.truediv, operator.pow])
@pytest.mark.parametrize(
    "shapes", [((), ()), ((5, 1), (7,)), ((1,), (3, 1, 2)), ((2, 3), ()), ((0, 3), (1, 3))], ids=str
)
def test_binary(agree, draw, dtype, op, shapes):
    a, b = shapes
    agree(op, op, draw(*a, dtype=dtype, positive=True), draw(*b, dtype=dtype, positive=True))


def test_powers_at_zero_and_of_negatives_agree_with_torch(agree):
    base = torch.tensor([0.0, -2.0, 3.0, 0.0], dtype=torch.float64)
    for exponent in (0, 1, 2, 3, 2.0):
        agree(lambda x, n=exponent: x**n, lambda x, n=exponent: x**n, base)
    agree(operator.pow, operator.pow, torch.tensor([0.0, 2.0, 0.0]), torch.tensor([2.0, 0.0, 0.0]), smooth=False)


def test_slope_of_the_root_at_zero_is_infinite():
    for f in (Tensor.sqrt, lambda x: x**0.5):
        x = Tensor([0.0], requires_grad=True)
        f(x).backward()
        assert x.grad.tolist() == [float("inf")]


def test_relu_at_zero_nan_and_infinite_gradients():
    x = Tensor([-1.0, 0.0, 2.0, float("nan")], requires_grad=True)
    relu(x).backward(torch.full((4,), float("inf")))
    assert x.grad.tolist() == [0.0, 0.0, float("inf"), float("inf")]


def test_large_arguments_stay_finite(agree):
    extreme = torch.tensor([-1e4, -50.0, 50.0, 1e4], dtype=torch.float64)
    for name in ("tanh", "sigmoid", "gelu"):
        ours, theirs, _ = UNARY[name]
        agree(ours, theirs, extreme, smooth=False)


@pytest.mark.parametrize(
    "shapes", [((3, 5), (3, 5), (3, 5)), ((5,), (3, 1), ()), ((3, 5), (), (5,)), ((0,), (0,), (1,))], ids=str
)
def test_where(agree, draw, dtype, shapes):
    mask = draw(*shapes[0]) > 0
    agree(
        lambda a, b: where(mask, a, b),
        lambda a, b: torch.where(mask, a, b),
        *(draw(*shape, dtype=dtype) for shape in shapes[1:]),
    )


def test_where_masks_what_would_be_nan():
    x = Tensor([1.0, -1.0], requires_grad=True)
    where(np.array([True, False]), x, -torch.inf).softmax().sum().backward()
    assert x.grad.tolist() == [0.0, 0.0]
    y = Tensor([2.0, 3.0], requires_grad=True)
    where([True, False], y, 0).backward(torch.tensor([1.0, float("nan")]))
    assert y.grad.tolist() == [1.0, 0.0]


def test_to_another_dtype_and_back(draw):
    x = Tensor(draw(3, dtype=torch.float32), requires_grad=True)
    y = x.to(torch.float64)
    assert y.dtype == torch.float64
    (y * y).sum().backward()
    assert x.grad.dtype == torch.float32
    torch.testing.assert_close(x.grad, 2 * x.data)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device is there")
def test_a_device_that_is_not_there():
    with pytest.raises(MissingToolError, match="cuda"):
        Tensor([1.0]).to("cuda")


def test_gelu_of_integers():
    with pytest.raises(InputError, match="gelu needs real numbers"):
        gelu(Tensor([1, 2]))


@given(st.lists(st.sampled_from(["exp", "tanh", "relu", "gelu", "sigmoid", "neg", "square"]), min_size=1, max_size=6))
def test_chains_of_operations(agree, draw, names):
    def chain(x, side):
        for name in names:
            x = (UNARY[name][side](x) * 0.5) + x * 0.1
        return x

    agree(lambda x: chain(x, 0), lambda x: chain(x, 1), draw(3, 2) * 0.5, smooth=False)
