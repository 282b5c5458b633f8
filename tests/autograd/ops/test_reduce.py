from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from mlsys_lab.autograd import Tensor, saved_bytes
from mlsys_lab.errors import InputError

OURS = {"sum": Tensor.sum, "mean": Tensor.mean, "max": Tensor.max, "var": Tensor.var}
THEIRS = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax, "var": torch.var}


@st.composite
def reductions(draw, min_side):
    shape = draw(array_shapes(min_dims=1, max_dims=4, min_side=min_side, max_side=5))
    axes = draw(st.lists(st.integers(-len(shape), len(shape) - 1), min_size=1, unique_by=lambda i: i % len(shape)))
    return shape, tuple(axes), draw(st.booleans())


@pytest.mark.parametrize("name", ["sum", "mean", "max"])
@given(reductions(min_side=1))
def test_any_axes(agree, draw, name, reduction):
    shape, axes, keepdims = reduction
    agree(
        lambda x: OURS[name](x, axes, keepdims),
        lambda x: THEIRS[name](x, axes, keepdims),
        draw(*shape),
        smooth=name != "max" or math.prod(shape) < 10,
    )


@given(reductions(min_side=2), st.integers(0, 1))
def test_variance(agree, draw, reduction, correction):
    shape, axes, keepdims = reduction
    agree(
        lambda x: x.var(axes, keepdims, correction),
        lambda x: x.var(axes, correction=correction, keepdim=keepdims),
        draw(*shape),
    )


@pytest.mark.parametrize("name", ["sum", "mean", "max"])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (13, 5), (2, 3, 5)], ids=str)
def test_all_axes_by_default(agree, draw, dtype, name, shape):
    theirs = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax}[name]
    agree(OURS[name], theirs, draw(*shape, dtype=dtype))
    ours_kept = OURS[name](Tensor(draw(*shape)), keepdims=True)
    assert ours_kept.shape == (1,) * len(shape)


@pytest.mark.parametrize("axis", [0, 1, (0, 1), None])
def test_sum_over_nothing_is_zero_and_mean_is_nan(agree, draw, axis):
    x = draw(0, 3)
    agree(lambda x: x.sum(axis), lambda x: x.sum(axis), x)
    assert x.mean(axis).isnan().equal(Tensor(x).mean(axis).data.isnan())


def test_max_shares_the_gradient_among_ties(agree):
    ties = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]], dtype=torch.float64)
    for axis in (0, 1, (0, 1)):
        agree(lambda x, i=axis: x.max(i), lambda x, i=axis: x.amax(i), ties, smooth=False)


def test_the_gradient_of_a_sum_is_a_view_and_a_leaf_still_gets_storage_of_its_own():
    x = Tensor(torch.ones(2, 3), requires_grad=True)
    y = x.sum()
    assert saved_bytes(y) == 0
    y.backward()
    x.grad[0, 0] = 5.0
    assert x.grad.tolist() == [[5.0, 1.0, 1.0], [1.0, 1.0, 1.0]]


@pytest.mark.parametrize(
    ("compute", "words"),
    [
        (lambda x: x.sum(2), "no such axis"),
        (lambda x: x.mean((0, -2)), "named twice"),
        (lambda x: x.reshape(2, 0, 3).max(1), "max over no elements"),
        (lambda x: x.var(axis=()), "needs an axis"),
        (lambda x: Tensor([[1.0]]).var(), "too few elements"),
        (lambda x: Tensor([1, 2]).mean(), "needs real numbers"),
        (lambda x: Tensor([1, 2]).var(), "needs real numbers"),
    ],
)
def test_bad_input(compute, words):
    with pytest.raises(InputError, match=words):
        compute(Tensor(torch.zeros(0, 3)))


def test_sum_of_integers_is_fine():
    assert Tensor([1, 2, 3]).sum().item() == 6
