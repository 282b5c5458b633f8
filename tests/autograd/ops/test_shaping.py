from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, basic_indices, integer_array_indices

from mlsys_lab.autograd import Tensor, cat
from mlsys_lab.errors import InputError


@given(array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4), st.randoms(use_true_random=False))
def test_permutations_and_reshapes(agree, draw, shape, rng):
    axes = list(range(len(shape)))
    rng.shuffle(axes)
    size = math.prod(shape)
    agree(lambda x: x.permute(axes).reshape(size), lambda x: x.permute(axes).reshape(size), draw(*shape))


def test_every_permutation_of_three_axes_undoes_itself(agree, draw):
    for axes in itertools.permutations(range(-3, 0)):
        agree(lambda x, p=axes: x.permute(*p), lambda x, p=axes: x.permute(*p), draw(2, 3, 5))


@pytest.mark.parametrize("pair", [(0, 1), (-1, 0), (1, 1), (-2, -1)])
def test_transpose(agree, draw, dtype, pair):
    agree(lambda x: x.transpose(*pair), lambda x: x.transpose(*pair), draw(2, 3, 5, dtype=dtype))


def test_reshape_takes_minus_one_and_a_tuple(draw):
    x = Tensor(draw(2, 3))
    assert x.reshape(-1).shape == x.reshape((6,)).shape == (6,)
    assert x.reshape(torch.Size([3, 2])).shape == (3, 2)


@pytest.mark.parametrize("shapes", [((3,), (2, 3)), ((2, 1), (2, 5)), ((), (4,)), ((1, 3), (0, 3))], ids=str)
def test_broadcast_to(agree, draw, dtype, shapes):
    old, new = shapes
    agree(lambda x: x.broadcast_to(*new), lambda x: x.broadcast_to(new), draw(*old, dtype=dtype))


@given(lengths=st.lists(st.integers(0, 4), min_size=1, max_size=4), axis=st.integers(-3, 2))
def test_cat(agree, draw, lengths, axis):
    shapes = [[2, 3, 5] for _ in lengths]
    for shape, length in zip(shapes, lengths, strict=True):
        shape[axis] = length
    agree(lambda *p: cat(p, axis), lambda *p: torch.cat(p, axis), *(draw(*shape) for shape in shapes))


def test_cat_of_a_tensor_with_itself_and_with_constants(draw):
    x = Tensor(draw(2, 3), requires_grad=True)
    cat([x, Tensor(draw(1, 3)), x * 2]).sum().backward()
    assert x.grad.tolist() == [[3.0] * 3] * 2


def _positive(index):
    """torch has no negative steps."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(not isinstance(part, slice) or part.step is None or part.step > 0 for part in parts)


@given(st.data())
def test_ints_slices_none_and_ellipsis(agree, draw, data):
    shape = data.draw(array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=5))
    index = data.draw(basic_indices(shape, allow_newaxis=True, allow_ellipsis=True).filter(_positive))
    agree(lambda x: x[index], lambda x: x[index], draw(*shape))


@given(st.data())
def test_arrays_of_indices(agree, draw, data):
    shape = data.draw(array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=5))
    index = data.draw(integer_array_indices(shape))
    agree(lambda x: x[index], lambda x: x[tuple(map(torch.as_tensor, index))], draw(*shape))


MIXED = [
    (slice(1, None), [0, 0, 2]),
    ([2, 0], slice(None), [1, 1]),
    (Ellipsis, [0, 0]),
    (None, [1, 1], 0),
    np.array([[0, 1], [1, 1]]),
    np.array([True, False, True]),
    [1, 1, 1],
    np.int64(1),
    (0, np.array([2, 2]), slice(0, 4, 2)),
]


@pytest.mark.parametrize("index", MIXED, ids=str)
def test_arrays_mixed_with_slices(agree, draw, dtype, index):
    def torch_index(part):
        return torch.as_tensor(part) if isinstance(part, (list, np.ndarray)) else part

    theirs = tuple(map(torch_index, index)) if isinstance(index, tuple) else torch_index(index)
    agree(lambda x: x[index], lambda x: x[theirs], draw(3, 4, 5, dtype=dtype))


def test_elements_taken_twice_receive_the_sum():
    x = Tensor([1.0, 2.0, 3.0], requires_grad=True)
    x[Tensor([0, 0, 2, 0])].backward(torch.tensor([1.0, 10.0, 100.0, 1000.0]))
    assert x.grad.tolist() == [1011.0, 0.0, 100.0]


def test_iteration_goes_over_the_first_axis(draw):
    x = Tensor(draw(3, 2), requires_grad=True)
    rows = list(x)
    assert [row.shape for row in rows] == [(2,)] * 3
    rows[1].sum().backward()
    assert x.grad.tolist() == [[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]]


@pytest.mark.parametrize(
    ("compute", "words"),
    [
        (lambda x: x.reshape(5), "reshape"),
        (lambda x: x.reshape(-1, -1), "reshape"),
        (lambda x: x.permute(0, 0), "every axis once"),
        (lambda x: x.permute(0), "every axis once"),
        (lambda x: x.permute(0, 2), "every axis once"),
        (lambda x: x.transpose(0, 2), "transpose"),
        (lambda x: x.broadcast_to(3, 3), "broadcast"),
        (lambda x: x[3], "out of bounds"),
        (lambda x: x[0, 0, 0], "too many indices"),
        (lambda x: x[::-1], "step"),
        (lambda x: x[[0, 3]], "out of bounds"),
        (lambda x: x["a"], "getitem"),
        (lambda x: cat([]), "cat joins the tensors of a list: got no tensors"),
        (lambda x: cat([x], axis=2), "out of range"),
        (lambda x: cat([x, x.T.reshape(2, 3)]), "cat along axis 0"),
    ],
)
def test_bad_input(compute, words):
    with pytest.raises(InputError, match=words) as caught:
        compute(Tensor(torch.zeros(3, 2)))
    assert "\n" not in str(caught.value)
