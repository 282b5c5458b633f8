from __future__ import annotations

import operator

import pytest
import torch

from mlsys_lab.autograd import (
    Tensor,
    cat,
    checkpoint,
    cross_entropy,
    dropout,
    embedding,
    layer_norm,
    linear,
    no_grad,
    record,
    rms_norm,
    saved_bytes,
    saved_storages,
    where,
)

N = 6 * 4  # bytes of a float32 array of 6 elements
MASK = torch.tensor([[True, False, True], [False, True, True]])


def tensor(*shape):
    """A result, not a leaf, so that what operations keep of it counts; made by an operation that keeps nothing."""
    return Tensor(torch.ones(*shape), requires_grad=True) + 1


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (lambda x: x + 1, 0),
        (lambda x: x - x, 0),
        (lambda x: -x, 0),
        (lambda x: x * 2, 0),
        (lambda x: 2 / (x * 1), 2 * N // 2),  # the divisor
        (lambda x: x * x, N),
        (lambda x: x * tensor(2, 3), 2 * N),
        (lambda x: x / tensor(3), N + 12),
        (lambda x: x**2, N),
        (lambda x: x.exp(), N),
        (lambda x: x.log(), N),
        (lambda x: x.sqrt(), N),
        (lambda x: x.tanh(), N),
        (lambda x: x.sigmoid(), N),
        (lambda x: x.relu(), N),
        (lambda x: x.gelu(), N),
        (lambda x: where(MASK, x, 0.0), 6),
        (lambda x: x.sum(0), 0),
        (lambda x: x.mean(), 0),
        (lambda x: x.max(0), N + 12),
        (lambda x: x.var(0), N),
        (lambda x: x.reshape(3, 2), 0),
        (lambda x: x.T, 0),
        (lambda x: x[0], 0),
        (lambda x: x[[0, 0]], 16),  # the indices, 8 bytes each
        (lambda x: cat([x, x]), 0),
        (lambda x: x.broadcast_to(5, 2, 3), 0),
        (lambda x: x.to(torch.float64), 0),
        (lambda x: x.softmax(), N),
        (lambda x: x.log_softmax(), N),
        (lambda x: cross_entropy(x, [0, 1]), N + 16),
        (lambda x: layer_norm(x), N + 8),  # normalised input, and one number a row
        (lambda x: rms_norm(x), N + 8),
        (lambda x: dropout(x, 0.5), 6),
        (lambda x: embedding(x, [0, 0, 1]), 24),
        (lambda x: x @ tensor(3, 5), N + 60),
        (lambda x: linear(x, Tensor(torch.ones(5, 3), requires_grad=True)), N),  # the weight is a leaf
        (lambda x: checkpoint(lambda y: y.exp().tanh() * y, x), N),
    ],
)
def test_what_each_operation_keeps(operation, expected):
    assert saved_bytes(operation(tensor(2, 3))) == expected


def test_shared_storage_counts_once_and_views_count_whole():
    x = tensor(4)
    y = x.exp()
    assert saved_bytes(y * y) == 16
    assert saved_bytes((y * y).exp() + y * y) == 16 + 16
    assert saved_bytes((x.reshape(2, 2)[0] * tensor(2)).sum()) == 16 + 8


def test_leaves_count_for_nothing_and_constant_inputs_do_count():
    x, w = Tensor(torch.ones(4)), Tensor(torch.ones(4), requires_grad=True)
    assert saved_storages(w * w) == {}
    assert saved_storages(x * w) == {x.data.untyped_storage().data_ptr(): 16}


def test_defaults_and_containers_of_a_vjp_of_ones_own_count():
    x, pair = tensor(4), [torch.ones(2), torch.ones(3)]
    data, cosine = x.data, x.data.cos()
    assert saved_bytes(record(data.sin(), (x, lambda g, slope=cosine: g * slope))) == 16
    assert saved_bytes(record(data * pair[0][0], (x, lambda g: g * pair[0][0]))) == 8 + 12


def test_nothing_is_held_after_backward_nor_within_no_grad():
    x = Tensor(torch.ones(4), requires_grad=True)
    y = x.exp().sum()
    assert saved_bytes(y) == 16
    y.backward(retain_graph=True)
    assert saved_bytes(y) == 16
    y.backward()
    assert saved_bytes(y) == 0
    with no_grad():
        assert saved_bytes(x.exp()) == 0


@pytest.mark.parametrize("op", [operator.mul, operator.truediv, operator.matmul])
def test_nothing_is_kept_for_operands_without_gradient(op):
    x, constant = Tensor(torch.ones(3, 3), requires_grad=True), Tensor(torch.ones(3, 3))
    assert saved_bytes(op(x, constant)) == 36
    assert saved_bytes(op(constant, constant)) == 0
