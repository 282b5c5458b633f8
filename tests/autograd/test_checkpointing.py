from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from mlsys_lab.autograd import (
    Tensor,
    best_segments,
    checkpoint,
    checkpoint_sequential,
    dropout,
    nn,
    no_grad,
    peak_units,
    saved_bytes,
    split_segments,
)
from mlsys_lab.errors import InputError


def layer(size=5, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(size, size), Tensor.tanh, nn.Linear(size, size), Tensor.gelu).to(torch.float64)


def gradients(compute, module, draw):
    """Result and gradients of the input and of all parameters."""
    module.zero_grad()
    x = Tensor(draw(3, 5), requires_grad=True)
    out = compute(x * 1.5)
    out.backward(draw(*out.shape))
    return [out.data, x.grad, *(p.grad for p in module.parameters())]


def same(got, expected):
    for a, b in zip(got, expected, strict=True):
        assert torch.equal(a, b)


def test_gradients_of_inputs_and_of_parameters_are_those_without_checkpoint(draw):
    module = layer()
    same(gradients(lambda x: checkpoint(module, x), module, draw), gradients(module, module, draw))


def test_nested(draw):
    module = layer()

    def nested(x):
        return checkpoint(lambda y: checkpoint(module, checkpoint(Tensor.exp, y)) * y, x)

    same(gradients(nested, module, draw), gradients(lambda x: module(x.exp()) * x, module, draw))


def test_the_result_needs_a_gradient_only_if_it_would_without_checkpoint():
    """Parameters count that the function uses without being passed them; arrays without gradients hold no graph."""
    constant, module = Tensor(torch.ones(2, 5, dtype=torch.float64)), layer()
    plain = checkpoint(lambda x: checkpoint(Tensor.exp, x) * 2, constant)
    assert not plain.requires_grad and plain.node is None
    assert checkpoint(module, constant).requires_grad
    assert not checkpoint(no_grad()(module), constant).requires_grad
    checkpoint(lambda x: checkpoint(module, x.exp()), constant).sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


def test_several_inputs_and_one_used_twice(agree, draw):
    def f(a, b):
        return (a * b).exp() + a.tanh()

    agree(lambda a, b: checkpoint(f, a, b) * a, lambda a, b: ((a * b).exp() + a.tanh()) * a, draw(3), draw(3))
    agree(lambda a: checkpoint(f, a, a), lambda a: (a * a).exp() + a.tanh(), draw(3))


def test_results_from_outside_that_the_function_uses(agree, draw):
    def ours(x):
        outside = x.exp()
        return checkpoint(lambda y: y * outside, x) + outside

    agree(ours, lambda x: x * x.exp() + x.exp(), draw(3))


def test_functions_that_do_nothing_or_ignore_their_input(draw):
    x = Tensor(draw(3), requires_grad=True)
    checkpoint(lambda y: y, x).sum().backward()
    assert x.grad.tolist() == [1.0] * 3
    x.grad = None
    checkpoint(lambda y: y, x * 2).sum().backward()
    assert x.grad.tolist() == [2.0] * 3
    constant = Tensor(draw(3))
    x.grad = None
    (checkpoint(lambda y: constant, x) + x).sum().backward()
    assert x.grad.tolist() == [1.0] * 3


def test_dropout_drops_the_same_elements_again_and_later_draws_are_undisturbed():
    x = Tensor(torch.ones(1000), requires_grad=True)
    torch.manual_seed(7)
    y = checkpoint(lambda a: dropout(a * 3, 0.5), x)
    between = torch.rand(2)
    y.sum().backward()
    after = torch.rand(2)
    assert torch.equal(x.grad != 0, y.data != 0)
    torch.manual_seed(7)
    torch.rand(1000)
    assert torch.equal(between, torch.rand(2)) and torch.equal(after, torch.rand(2))


def test_the_function_runs_once_forward_and_once_backward():
    calls = []

    def f(x):
        calls.append(1)
        return x.exp()

    y = checkpoint(f, Tensor([1.0], requires_grad=True))
    assert len(calls) == 1
    y.backward()
    assert len(calls) == 2


def test_only_inputs_are_held_until_the_pass():
    x = Tensor(torch.ones(10), requires_grad=True) * 2

    def f(y):
        for _ in range(20):
            y = y.exp() + 1
        return y

    assert saved_bytes(f(x)) == 20 * 40
    assert saved_bytes(checkpoint(f, x)) == 40


def test_release_and_retain():
    x = Tensor([2.0], requires_grad=True)
    y = checkpoint(lambda a: a * a, x)
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad.tolist() == [8.0]
    with pytest.raises(InputError, match="released"):
        y.backward()


def test_within_no_grad_nothing_is_recorded():
    with no_grad():
        y = checkpoint(Tensor.exp, Tensor([1.0], requires_grad=True))
    assert not y.requires_grad


def test_backward_within_no_grad_still_recomputes():
    x = Tensor([2.0], requires_grad=True)
    y = checkpoint(lambda a: a * a, x)
    with no_grad():
        y.backward()
    assert x.grad.tolist() == [4.0]


def test_results_other_than_one_tensor():
    with pytest.raises(InputError, match="returns one Tensor: got tuple"):
        checkpoint(lambda x: (x, x), Tensor([1.0]))


@pytest.mark.parametrize("segments", [1, 2, 3, 7, None])
def test_sequential(draw, segments):
    layers = [layer(seed=i) for i in range(7)]
    module = nn.Sequential(*layers)
    same(gradients(lambda x: checkpoint_sequential(layers, x, segments), module, draw), gradients(module, module, draw))


def test_sequential_holds_an_input_for_each_segment_and_the_last_segment():
    def f(y):
        return y.tanh() + 1  # keeps one array

    def held(segments):
        return (
            saved_bytes(checkpoint_sequential([f] * 12, Tensor(torch.ones(10), requires_grad=True) + 1, segments)) // 40
        )

    assert [held(k) for k in (1, 3, 4, 12)] == [12, 2 + 4, 3 + 3, 11 + 1]


@pytest.mark.parametrize(("layers", "segments"), [(0, 1), (3, 4), (3, 0)])
def test_splits_that_cannot_be(layers, segments):
    with pytest.raises(InputError, match="cannot split the layers"):
        split_segments(layers, segments)
    with pytest.raises(InputError, match="cannot split the layers"):
        checkpoint_sequential([Tensor.exp] * layers, Tensor([1.0]), segments if layers else None)


def test_split_covers_every_layer_once_and_evenly():
    for layers in range(1, 40):
        for segments in range(1, layers + 1):
            ranges = split_segments(layers, segments)
            assert [i for r in ranges for i in r] == list(range(layers))
            assert max(map(len, ranges)) == math.ceil(layers / segments)
            assert min(map(len, ranges)) == layers // segments


def test_best_segments_is_best():
    for layers in range(1, 400):
        best = min(peak_units(layers, k) for k in range(1, layers + 1))
        assert peak_units(layers, best_segments(layers)) == best


@pytest.mark.gpu
def test_dropout_on_the_gpu_drops_the_same_elements_again():
    x = Tensor(torch.ones(1000), requires_grad=True, device="cuda")
    y = checkpoint(lambda a: dropout(a * 3, 0.5), x)
    torch.rand(5, device="cuda")
    y.sum().backward()
    assert torch.equal(x.grad != 0, y.data != 0)


def test_inputs_of_any_kind(draw):
    x, y = (Tensor(draw(2, 3), requires_grad=True) for _ in range(2))

    def function(pair, factor, nothing, *, scale, offset):
        assert nothing is None
        return pair[0] * pair[1] * factor * scale + offset

    arguments = ([x, y], np.float64(3.0), None), {"scale": torch.full((2, 3), 2.0), "offset": 1}
    checkpoint(function, *arguments[0], **arguments[1]).sum().backward()
    got = x.grad, y.grad
    x.grad = y.grad = None
    function(*arguments[0], **arguments[1]).sum().backward()
    same(got, (x.grad, y.grad))


def test_a_function_that_returns_another_shape_when_called_again():
    x, calls = Tensor([1.0, 2.0], requires_grad=True), []

    def function(y):
        calls.append(y)
        return y * 2 if len(calls) > 1 else (y * 2).sum()

    with pytest.raises(InputError, match=r"the same result .*: got a result of shape \(2,\), expected shape \(\)"):
        checkpoint(function, x).backward()


def test_sequential_takes_a_module_as_it_is(draw):
    module = nn.Sequential(*layer(seed=1), *layer(seed=2))
    assert (len(module), type(module[0]), len(module[2:5])) == (8, nn.Linear, 3)
    same(gradients(lambda x: checkpoint_sequential(module, x), module, draw), gradients(module, module, draw))
