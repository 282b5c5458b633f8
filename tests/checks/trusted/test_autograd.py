"""Lab 01's oracles against the libraries that they stand in for."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from mlsys_checks.trusted.autograd.engine import gradients, leaf
from mlsys_checks.trusted.autograd.training import digits, sgd_after
from mlsys_checks.trusted.compare import close


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_sum_for_sgd_is_what_torch_optim_does(momentum: float) -> None:
    rng = np.random.default_rng(0)
    start, grads = rng.standard_normal((3, 4)), rng.standard_normal((7, 3, 4))
    p = leaf(start)
    rates = 0.05 * 0.7 ** np.arange(7)
    optimizer = torch.optim.SGD([p], lr=0.05, momentum=momentum)
    for grad, lr in zip(grads, rates, strict=True):
        optimizer.param_groups[0] |= {"lr": lr}
        p.grad = torch.from_numpy(grad)
        optimizer.step()
    assert close({"p": sgd_after(start, grads, rates, momentum)}, {"p": p.detach().numpy()}) is None


@pytest.mark.parametrize("found", [True, False])
def test_the_digits_are_scikit_learns_wherever_it_keeps_them(found: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not found:
        monkeypatch.setattr("mlsys_checks.trusted.autograd.training.find_spec", lambda name: None)
    digits.cache_clear()
    assert importlib.util.find_spec("sklearn") is not None
    images, labels = digits()
    want_images, want_labels = load_digits(return_X_y=True)
    assert np.array_equal(images, want_images) and np.array_equal(labels, want_labels)
    assert images.dtype == np.float64 and labels.dtype == np.int64
    digits.cache_clear()


def test_gradients_are_those_of_torch_for_a_given_array() -> None:
    x, idle = leaf(np.array([0.3, -2.0, 1.5])), leaf(np.ones(2))
    g = np.array([2.0, -1.0, 0.5])
    grad, none = gradients(x.exp(), (x, idle), g)
    assert torch.equal(grad, (x.detach().exp() * torch.from_numpy(g)))
    assert torch.equal(none, torch.zeros(2, dtype=torch.float64))
