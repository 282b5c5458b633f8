from __future__ import annotations

import operator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mlsys_lab.autograd import Tensor, linear, matmul, saved_bytes
from mlsys_lab.errors import InputError

SHAPES = [
    ((3, 5), (5, 7)),
    ((1, 1), (1, 1)),
    ((4,), (4,)),
    ((4,), (4, 3)),
    ((3, 4), (4,)),
    ((2, 3, 4), (4,)),
    ((4,), (2, 4, 3)),
    ((2, 3, 4), (4, 5)),
    ((3, 4), (2, 4, 5)),
    ((2, 3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (5, 4, 2)),
    ((1, 3, 4), (6, 4, 1)),
    ((0, 4), (4, 3)),
    ((3, 0), (0, 2)),
    ((2, 0, 3), (3, 4)),
    ((13, 11), (11, 17)),
]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_matmul(agree, draw, dtype, shapes):
    agree(operator.matmul, operator.matmul, *(draw(*shape, dtype=dtype) for shape in shapes))


@given(
    n=st.integers(0, 4),
    k=st.integers(0, 4),
    m=st.integers(0, 4),
    batch=st.sampled_from([((), ()), ((2,), ()), ((), (2,)), ((1,), (3,)), ((2, 1), (3,)), ((0,), (1,))]),
)
def test_any_sizes(agree, draw, n, k, m, batch):
    agree(matmul, torch.matmul, draw(*batch[0], n, k), draw(*batch[1], k, m))


def test_a_matrix_with_itself_and_its_transpose(agree, draw):
    agree(lambda x: x @ x, lambda x: x @ x, draw(3, 3))
    agree(lambda x: x @ x.T, lambda x: x @ x.mT, draw(2, 3, 4))


def test_constants_on_either_side(draw):
    x, c = Tensor(draw(3, 3), requires_grad=True), draw(3, 3)
    (c @ x @ c.numpy()).sum().backward()
    torch.testing.assert_close(x.grad, c.T @ torch.ones(3, 3, dtype=torch.float64) @ c.T)


@pytest.mark.parametrize("shapes", [((), (3,)), ((2, 3), (2, 3)), ((2, 2, 3), (3, 3, 1))], ids=str)
def test_shapes_that_do_not_match(draw, shapes):
    a, b = (Tensor(draw(*shape)) for shape in shapes)
    with pytest.raises(InputError, match="matmul"):
        a @ b


@pytest.mark.parametrize("shape", [(5,), (1, 5), (7, 5), (2, 3, 5), (0, 5)], ids=str)
def test_linear(agree, draw, dtype, shape):
    arrays = draw(*shape, dtype=dtype), draw(3, 5, dtype=dtype), draw(3, dtype=dtype)
    agree(linear, torch.nn.functional.linear, *arrays)
    agree(linear, torch.nn.functional.linear, *arrays[:2])


def test_linear_of_shapes_that_do_not_match(draw):
    with pytest.raises(InputError, match=r"linear: .* got float64 \(2, 4\) and float64 \(3, 5\)"):
        linear(Tensor(draw(2, 4)), Tensor(draw(3, 5)))


def test_a_constant_input_saves_no_weight_gradient_work(draw):
    x, w = Tensor(draw(4, 5)), Tensor(draw(5, 3), requires_grad=True)
    assert saved_bytes(x @ w) == 4 * 5 * 8  # x for the weight's gradient; no gradient of x, so nothing for it
