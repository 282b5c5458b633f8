from __future__ import annotations

import math

import pytest
import torch

from mlsys_lab.autograd import Tensor, nn, optim
from mlsys_lab.errors import InputError

CONFIGURATIONS = [
    (optim.SGD, torch.optim.SGD, {"lr": 0.1}),
    (optim.SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    (optim.SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    (optim.Adam, torch.optim.Adam, {}),
    (optim.Adam, torch.optim.Adam, {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}),
    (optim.AdamW, torch.optim.AdamW, {}),
    (optim.AdamW, torch.optim.AdamW, {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}),
    (optim.AdamW, torch.optim.AdamW, {"weight_decay": 0.0}),
]


@pytest.mark.parametrize(("ours", "theirs", "options"), CONFIGURATIONS)
def test_ten_steps_equal_those_of_torch(draw, dtype, ours, theirs, options):
    start = [draw(3, 5, dtype=dtype), draw(7, dtype=dtype), draw(2, dtype=dtype)]
    tensors = [Tensor(x.clone(), requires_grad=True) for x in start]
    leaves = [x.clone().requires_grad_() for x in start]
    ours, theirs = ours(tensors, **({"lr": 1e-3} | options)), theirs(leaves, **options)
    for step in range(10):
        for i, (tensor, leaf) in enumerate(zip(tensors[:2], leaves[:2], strict=True)):  # the third never has a gradient
            tensor.grad = None if step == 3 and i == 1 else tensor.data * 2 + step
            leaf.grad = None if step == 3 and i == 1 else leaf.detach() * 2 + step
        ours.step()
        theirs.step()
    for tensor, leaf, before in zip(tensors, leaves, start, strict=True):
        torch.testing.assert_close(
            tensor.data, leaf.detach(), rtol=1e-5 if dtype == torch.float32 else 1e-12, atol=1e-12
        )
        assert torch.equal(tensor.data, before) == (tensor.grad is None and tensor is tensors[2])


def test_a_step_leaves_gradients_alone_and_zero_grad_forgets_them(draw):
    x = Tensor(draw(3), requires_grad=True)
    for optimizer in (optim.SGD([x], 0.1, momentum=0.9), optim.AdamW([x])):
        x.grad = torch.ones(3, dtype=torch.float64)
        grad = x.grad
        optimizer.step()
        optimizer.step()
        assert torch.equal(grad, torch.ones_like(grad))
        optimizer.zero_grad()
        assert x.grad is None


def test_parameters_may_come_from_a_generator_that_is_read_once():
    module = nn.Linear(2, 2)
    optimizer = optim.SGD((p for p in module.parameters()), 0.1)
    assert len(optimizer.parameters) == 2


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda x: optim.SGD([], 0.1), "at least one parameter"),
        (lambda x: optim.SGD([x], -1.0), "lr must not be negative"),
        (lambda x: optim.SGD([x], math.nan), "lr must not be negative: got nan"),
        (lambda x: optim.SGD([x], "0.1"), "lr must not be negative: got 0.1"),
        (lambda x: optim.SGD([x], 0.1, momentum=-0.9), "momentum must not be negative"),
        (lambda x: optim.SGD([x], 0.1, weight_decay=-0.9), "weight_decay must not be negative"),
        (lambda x: optim.Adam([x], eps=-1e-8), "eps must not be negative"),
        (lambda x: optim.Adam([x], weight_decay=-1), "weight_decay must not be negative"),
        (lambda x: optim.SGD(x, 0.1), r"a list of parameters: got a single tensor, expected \[tensor\]"),
        (lambda x: optim.SGD([x * 2], 0.1), "changes leaves: got mul, expected Tensors that no operation has made"),
        (lambda x: optim.SGD([x.data], 0.1), "changes leaves: got torch.Tensor"),
        (lambda x: optim.SGD([{"params": [x]}], 0.1), "changes leaves: got builtins.dict"),
        (lambda x: optim.SGD([x, x], 0.1), "a parameter comes twice; help: Module.parameters"),
        (lambda x: optim.AdamW([x], betas=(0.9, 1.0)), "betas out of range"),
    ],
)
def test_bad_input(make, words):
    with pytest.raises(InputError, match=words):
        make(Tensor([1.0], requires_grad=True))
