"""An array changed between forward and backward: gradients are those of the forward pass, or an error says why not."""

from __future__ import annotations

import operator

import pytest
import torch

from mlsys_lab.autograd import (
    Tensor,
    checkpoint,
    cross_entropy,
    embedding,
    gelu,
    layer_norm,
    nn,
    no_grad,
    optim,
    rms_norm,
    where,
)
from mlsys_lab.errors import InputError

PROGRAMS = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "pow": lambda x, y: x**y,
    "square": lambda x, y: x**2 + y,
    "matmul": lambda x, y: x @ y.T,
    "exp": lambda x, y: x.exp() + y,
    "log": lambda x, y: x.log() + y,
    "sqrt": lambda x, y: x.sqrt() + y,
    "tanh": lambda x, y: x.tanh() + y,
    "relu": lambda x, y: (x - 1).relu() + y,
    "gelu": lambda x, y: gelu(x) * y,
    "where": lambda x, y: where(x > 1, x, y),
    "max": lambda x, y: x.max(0) + y,
    "var": lambda x, y: x.var(0) + y,
    "softmax": lambda x, y: x.softmax() * y,
    "logsumexp": lambda x, y: x.logsumexp() + y.sum(1),
    "layer_norm": lambda x, y: layer_norm(x, y[0], y[1]),
    "rms_norm": lambda x, y: rms_norm(x, y[0]),
    "views": lambda x, y: x.reshape(9).exp() * y.T.reshape(9),
    "rows": lambda x, y: x[[0, 0, 2]] * y[1:2],
    "embedding": lambda x, y: embedding(x, [0, 2, 2]) * y,
    "cross_entropy": lambda x, y: cross_entropy(x * y, [0, 1, 2]),
    "checkpoint": lambda x, y: checkpoint(lambda a, b: a.exp() * b, x, y),
}


def leaves():
    generator = torch.Generator().manual_seed(1)
    return [Tensor(torch.rand(3, 3, generator=generator) + 0.5, requires_grad=True) for _ in range(2)]


@pytest.mark.parametrize("changed", ["first operand", "second operand", "result", "view of an operand"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_right_or_refused(name, changed):
    x, y = leaves()
    out = PROGRAMS[name](x, y)
    seed = torch.ones_like(out.data)
    out.backward(seed)
    expected = x.grad, y.grad

    x, y = leaves()
    out = PROGRAMS[name](x, y)
    {"first operand": x.data, "second operand": y.data, "result": out.data, "view of an operand": x.data[1:]}[
        changed
    ].add_(0.5)
    try:
        out.backward(seed)
    except InputError as refusal:
        assert "changed in place after the forward pass: got 1 change to an array of shape (" in str(refusal)
    else:
        for tensor, grad in zip((x, y), expected, strict=True):
            torch.testing.assert_close(tensor.grad, grad)


def test_a_step_before_the_backward_pass_is_refused():
    model = nn.MLP(3, 4, 2)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    model(Tensor(torch.ones(5, 3))).sum().backward()
    late = model(Tensor(torch.ones(5, 3))).sum()
    optimizer.step()
    with pytest.raises(InputError, match=r"backward pass of linear .* before optimizer.step"):
        late.backward()


def test_a_change_that_no_derivative_depends_on_is_allowed():
    x, y = leaves()
    total = (x + y).sum()
    x.data.zero_()
    total.backward()
    assert torch.equal(x.grad, torch.ones(3, 3))


def test_torchs_inference_mode_counts_no_changes_and_still_differentiates():
    with torch.inference_mode():
        x = Tensor(torch.ones(3), requires_grad=True)
        (x * x).sum().backward()
    assert x.grad.tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: (x * y).sum(),
        lambda x, y: (x + y).exp().sum(),  # the sum itself keeps nothing
        lambda x, y: (x @ y.T).exp().sum(),  # the operand is a view, which is gone when the pass begins
        lambda x, y: checkpoint(lambda a: (a * y).sum(), x),
        lambda x, y: (x * y.data).sum(),
        lambda x, y: (x * x[[0, 1, 2]]).sum() * y.sum(),
    ],
)
@pytest.mark.parametrize("change", [lambda y: y.data.mul_(2), lambda y: y.data[1:].fill_(3), lambda y: step(y)])
def test_what_a_checkpointed_function_uses_is_not_changed_before_it_is_called_again(function, change):
    x, y = leaves()
    out = checkpoint(lambda a: function(a, y), x)
    change(y)
    with pytest.raises(InputError, match="backward pass of checkpoint needs was changed in place after the forward"):
        out.backward()


def step(parameter):
    parameter.grad = torch.ones(3, 3)
    optim.SGD([parameter], lr=0.1).step()


def test_changes_within_a_checkpointed_function_and_of_its_result_are_no_changes_after_it():
    x, y = leaves()
    calls = torch.zeros(3, 3)

    def counts(a):
        calls.add_(1)
        return (a * y + calls * 0).exp()

    out = checkpoint(counts, x)
    expected = out.data * y.data
    out.data.zero_()
    out.backward(torch.ones(3, 3))
    torch.testing.assert_close(x.grad, expected)


def test_augmented_assignment_never_loses_a_leaf():
    weight = leaf = Tensor([1.0, 2.0], requires_grad=True)
    changes = (operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ipow)
    for change in changes:
        with pytest.raises(InputError, match=r"cannot be changed in place while the tape records; help: .*no_grad"):
            change(weight, 2.0)
    with no_grad():
        weight -= 0.5 * torch.ones(2)
        assert weight is leaf and weight.data.tolist() == [0.5, 1.5] and weight.requires_grad
        with pytest.raises(InputError, match=r"keeps the shape: got \(3, 2\), expected \(2,\)"):
            weight += torch.ones(3, 1)
    total = 0.0
    for _ in range(3):
        total += (weight * weight).sum()
    h = before = weight * 1.0
    h *= 2.0
    assert h is not before and before.data.tolist() == [0.5, 1.5]
    (total + h.sum()).backward()
    assert weight.grad.tolist() == [5.0, 11.0]
    late = (weight * weight).sum()
    with no_grad():
        weight += 1.0
    with pytest.raises(InputError, match="changed in place after the forward pass"):
        late.backward()


def test_elements_are_not_assigned():
    with pytest.raises(InputError, match=r"elements cannot be recorded; help: tensor.data\[index\] = value"):
        Tensor([1.0])[0] = 2.0
