from __future__ import annotations

import operator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes

from mlsys_lab.autograd import Tensor
from mlsys_lab.autograd.ops.broadcasting import unbroadcast
from mlsys_lab.errors import InputError


@given(
    shapes=mutually_broadcastable_shapes(num_shapes=2, max_dims=4, max_side=5, min_side=0),
    op=st.sampled_from([operator.add, operator.sub, operator.mul, operator.truediv]),
)
def test_both_operands_broadcast_and_gradients_come_back_in_their_shapes(agree, draw, shapes, op):
    a, b = shapes.input_shapes
    agree(op, op, draw(*a), draw(*b, positive=True))


@given(shapes=mutually_broadcastable_shapes(num_shapes=2, max_dims=4, max_side=5))
def test_unbroadcast_is_the_adjoint_of_broadcasting(shapes):
    # <broadcast(x), g> = <x, unbroadcast(g)> for integers, exactly
    shape, result = shapes.input_shapes[0], shapes.result_shape
    rng = np.random.default_rng(0)
    x = torch.as_tensor(rng.integers(-9, 9, shape), dtype=torch.float64)
    g = torch.as_tensor(rng.integers(-9, 9, result), dtype=torch.float64)
    back = unbroadcast(g, shape)
    assert back.shape == shape
    assert (x.broadcast_to(result) * g).sum() == (x * back).sum()


@pytest.mark.parametrize("op", [operator.add, operator.mul, operator.matmul])
def test_shapes_that_do_not_fit_are_named(op):
    a, b = Tensor(torch.ones(3, 2)), Tensor(torch.ones(4, 2))
    with pytest.raises(InputError, match=r"got float32 \(3, 2\) and float32 \(4, 2\), expected") as caught:
        op(a, b)
    assert "\n" not in str(caught.value)


def test_operands_of_different_dtypes_are_refused_where_a_gradient_would_change_its_dtype():
    x = Tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(InputError, match="operands of different dtypes"):
        x * np.array([1.0, 2.0])
    assert (x * np.array([1, 2])).dtype == torch.float32
    assert (x * 2).dtype == torch.float32


@pytest.mark.parametrize("number", [2, 2.5, np.float64(2.5), np.float32(2.5), np.int64(2)])
def test_plain_numbers_take_on_the_dtype(dtype, number):
    x = Tensor(torch.ones(3, dtype=dtype), requires_grad=True)
    for y in (x * number, number * x, x - number, number - x, x / number, number / x):
        assert y.dtype == dtype


def test_numpy_arrays_and_torch_tensors_on_the_left():
    x = Tensor([[1.0, 2.0]], requires_grad=True)
    for constant in (np.ones((2, 1), np.float32) * 3, torch.ones(2, 1) * 3):
        x.grad = None
        y = constant * x
        assert isinstance(y, Tensor) and y.shape == (2, 2)
        y.sum().backward()
        assert x.grad.tolist() == [[6.0, 6.0]]


def test_torch_tensors_under_torch_autograd_are_refused():
    with pytest.raises(InputError, match="torch's autograd"):
        Tensor([1.0]) * torch.ones(1, requires_grad=True)
