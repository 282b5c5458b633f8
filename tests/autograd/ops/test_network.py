from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from mlsys_lab.autograd import (
    Tensor,
    cat,
    cross_entropy,
    dropout,
    embedding,
    gelu,
    layer_norm,
    linear,
    log_softmax,
    logsumexp,
    relu,
    rms_norm,
    saved_bytes,
    softmax,
)
from mlsys_lab.errors import InputError

SHAPES = [(1,), (7,), (13, 5), (2, 3, 5), (0, 3), (1, 1), (17, 11)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("axis", [0, -1])
def test_softmax_and_log_softmax(agree, draw, dtype, shape, axis):
    x = draw(*shape, dtype=dtype)
    agree(lambda x: x.softmax(axis), lambda x: x.softmax(axis), x)
    agree(lambda x: x.log_softmax(axis), lambda x: x.log_softmax(axis), x)
    agree(lambda x: x.logsumexp(axis), lambda x: x.logsumexp(axis), x)
    agree(lambda x: x.logsumexp(axis, keepdims=True), lambda x: x.logsumexp(axis, keepdim=True), x)


def test_softmax_of_extreme_scores(agree):
    x = torch.tensor([[1e4, 0.0, -1e4], [-float("inf"), 0.0, 1.0]], dtype=torch.float64)
    agree(lambda x: x.softmax(), lambda x: x.softmax(-1), x, smooth=False)
    agree(lambda x: x[:, 1:].logsumexp(), lambda x: x[:, 1:].logsumexp(-1), x, smooth=False)
    agree(lambda x: x[:, 1:].log_softmax(), lambda x: x[:, 1:].log_softmax(-1), x, smooth=False)


@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (2, 3, 5), (5,), (13, 2, 1)], ids=str)
@pytest.mark.parametrize("integers", [torch.int64, torch.int32, torch.uint8])
def test_cross_entropy(agree, draw, dtype, shape, integers):
    classes = shape[-1]
    targets = torch.arange(int(np.prod(shape[:-1]))).reshape(shape[:-1]) % classes
    agree(
        lambda x: cross_entropy(x, targets.to(integers)),
        lambda x: F.cross_entropy(x.reshape(-1, classes), targets.reshape(-1)),
        draw(*shape, dtype=dtype),
    )


def test_cross_entropy_scales_with_the_gradient_above(agree, draw):
    targets = [0, 2, 1]
    agree(
        lambda x: cross_entropy(x, np.array(targets)) * -3.0,
        lambda x: F.cross_entropy(x, torch.tensor(targets)) * -3.0,
        draw(3, 4),
    )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_norms(agree, draw, dtype, shape):
    c = shape[-1]
    x, weight, bias = draw(*shape, dtype=dtype), draw(c, dtype=dtype) + 2, draw(c, dtype=dtype)
    agree(layer_norm, lambda x, w, b: F.layer_norm(x, (c,), w, b), x, weight, bias)
    agree(layer_norm, lambda x: F.layer_norm(x, (c,)), x)
    agree(rms_norm, lambda x, w: F.rms_norm(x, (c,), w, 1e-6), x, weight)
    agree(rms_norm, lambda x: F.rms_norm(x, (c,), eps=1e-6), x)


def test_norms_take_eps_from_the_caller(agree, draw):
    x = draw(3, 4) * 1e-2
    agree(lambda x: layer_norm(x, eps=0.1), lambda x: F.layer_norm(x, (4,), eps=0.1), x)
    agree(lambda x: rms_norm(x, eps=0.1), lambda x: F.rms_norm(x, (4,), eps=0.1), x)


@given(places=st.lists(st.integers(0, 4), max_size=12), columns=st.integers(1, 3))
def test_embedding(agree, draw, places, columns):
    rows = torch.tensor(places, dtype=torch.int64)
    agree(lambda t: embedding(t, rows), lambda t: F.embedding(rows, t), draw(5, columns))


def test_embedding_of_a_matrix_of_indices(agree, draw, dtype):
    rows = np.array([[0, 3], [3, 3], [1, 0]])
    agree(lambda t: embedding(t, rows), lambda t: F.embedding(torch.as_tensor(rows), t), draw(4, 5, dtype=dtype))


def test_dropout_zeroes_a_share_p_and_rescales_the_rest():
    torch.manual_seed(0)
    x = Tensor(torch.ones(100, 100), requires_grad=True)
    y = dropout(x, 0.3)
    kept = y.data != 0
    assert abs(kept.double().mean() - 0.7) < 5 * (0.3 * 0.7 / 10_000) ** 0.5  # five standard deviations
    torch.testing.assert_close(y.data[kept], torch.full_like(y.data[kept], 1 / 0.7))
    assert saved_bytes(y) == 10_000  # one byte an element
    y.backward(torch.full((100, 100), 2.0))
    torch.testing.assert_close(x.grad, y.data * 2)


def test_dropout_outside_training_and_with_p_0_is_the_identity():
    x = Tensor([1.0, 2.0])
    assert dropout(x, 0.5, training=False) is x
    assert dropout(x, 0.0) is x


@pytest.mark.parametrize(
    ("compute", "words"),
    [
        (lambda x: x.softmax(3), "no such axis"),
        (lambda x: x.log_softmax(-3), "no such axis"),
        (lambda x: Tensor([1, 2]).softmax(), "softmax needs real numbers"),
        (lambda x: Tensor([1, 2]).log_softmax(), "log_softmax needs real numbers"),
        (lambda x: cross_entropy(x, [0, 1]), "one target for each row"),
        (lambda x: cross_entropy(x, [0.0, 1.0, 1.0]), "class numbers"),
        (lambda x: cross_entropy(x, [True, False, True]), "class numbers"),
        (lambda x: cross_entropy(x, [0, 1, 2]), "expected classes 0 to 1"),
        (lambda x: cross_entropy(x, [0, 1, -1]), "expected classes 0 to 1"),
        (lambda x: cross_entropy(Tensor(torch.ones(0, 2)), torch.ones(0, dtype=torch.int64)), "at least one row"),
        (lambda x: cross_entropy(Tensor([[1, 2]]), [0]), "cross_entropy needs real numbers"),
        (lambda x: layer_norm(x, Tensor([1.0])), "one number per channel"),
        (lambda x: rms_norm(x, Tensor([[1.0, 1.0]])), "one number per channel"),
        (lambda x: layer_norm(Tensor(torch.ones(2, 0))), "one number per channel"),
        (lambda x: layer_norm(Tensor(1.0)), "one number per channel"),
        (lambda x: rms_norm(Tensor([1, 2])), "rms_norm needs real numbers"),
        (lambda x: embedding(x, [0.5]), "by number"),
        (lambda x: embedding(x, [0, 3]), "expected 0 to 2"),
        (lambda x: embedding(x, [-1]), "expected 0 to 2"),
        (lambda x: embedding(Tensor([1.0]), [0]), "by number"),
        (lambda x: dropout(x, 1.0), "probability out of range"),
        (lambda x: dropout(x, -0.1), "probability out of range"),
    ],
)
def test_bad_input(compute, words):
    with pytest.raises(InputError, match=words) as caught:
        compute(Tensor(torch.ones(3, 2)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor, list], ids=["numpy", "torch", "list"])
def test_constants_are_arrays_of_any_kind(kind):
    """A numpy array has an attribute `data` too, which is a memoryview."""
    x, ones = kind([[1.0, 2.0], [3.0, -4.0]]), kind([1.0, 1.0])
    if kind is np.asarray:
        x, ones = x.astype(np.float32), ones.astype(np.float32)
    there, weight = Tensor(x), Tensor(ones)
    for function in (relu, gelu, softmax, log_softmax, logsumexp, layer_norm, rms_norm):
        assert torch.equal(function(x).data, function(there).data)
    assert torch.equal(layer_norm(x, ones, ones).data, layer_norm(there, weight, weight).data)
    assert torch.equal(linear(x, [[1.0, 1.0]], [0.5]).data, (there @ Tensor([[1.0], [1.0]]) + 0.5).data)
    assert torch.equal(cross_entropy(x, [0, 1]).data, cross_entropy(there, [0, 1]).data)
    assert torch.equal(embedding(x, [1]).data, there[[1]].data)
    assert torch.equal(dropout(x, training=False).data, there.data) and dropout(x).shape == (2, 2)
    assert torch.equal(cat([x, there]).data, cat([there, there]).data)


def test_axes_of_logsumexp_and_of_softmax(agree, draw):
    for axis in ((0, 1), (-1, 0), (1,)):
        agree(lambda x, axis=axis: x.logsumexp(axis), lambda x, axis=axis: x.logsumexp(axis), draw(3, 4, 2))
    with pytest.raises(InputError, match=r"log_softmax goes along one axis: got \(0, 1\), expected an axis of shape"):
        Tensor([[1.0]]).log_softmax((0, 1))
