"""Published figures, reproduced by the engine."""

from __future__ import annotations

import pytest
import torch

from mlsys_lab.autograd import Tensor, Value, best_segments, checkpoint_sequential, peak_units, saved_bytes
from tests.oracles.catalogue import oracles


def number(x):
    return x.data if isinstance(x, Value) else x.item()


def slope(x):
    return x.grad if isinstance(x, Value) else x.grad.item()


def textbook_graph(i, scalar=Value):
    x, y, z = (scalar(i[name]) for name in "xyz")
    f = (x + y) * z
    f.backward()
    return [number(f), slope(x), slope(y), slope(z)]


def sigmoid_neuron(i, scalar=Value):
    w0, w1, w2 = map(scalar, i["w"])
    x0, x1 = map(scalar, i["x"])
    f = 1 / (1 + (-(w0 * x0 + w1 * x1 + w2)).exp())
    f.backward()
    return [number(f), *map(slope, (w0, x0, w1, x1, w2))]


def square_root_rule(i):
    return [min(peak_units(i["n"], k) for k in range(1, i["n"] + 1)), best_segments(i["n"])]


COMPUTED = {
    "AG02": textbook_graph,
    "AG03": sigmoid_neuron,
    "AG04": square_root_rule,
    "AG05": lambda i: [i["before_GB"] / i["after_GB"]],
}


@pytest.mark.parametrize("name", COMPUTED)
def test_published_figure(name: str) -> None:
    oracle = oracles()[name]
    oracle.check(*COMPUTED[name](oracle.inputs))


@pytest.mark.parametrize("name", ["AG02", "AG03"])
def test_tensors_of_one_number_give_the_figure_too(name: str) -> None:
    oracle = oracles()[name]
    oracle.check(*COMPUTED[name](oracle.inputs, lambda x: Tensor(float(x), requires_grad=True)))


def test_ag05_the_published_saving_is_within_what_segments_can_give():
    inputs = oracles()["AG05"].inputs
    published = inputs["before_GB"] / inputs["after_GB"]

    def held(segments):
        x = Tensor(torch.ones(1), requires_grad=True) + 1
        return saved_bytes(checkpoint_sequential([Tensor.exp] * inputs["layers"], x, segments))

    # Equal layers are the best case: the real network's saving lies between none and that of √n segments.
    assert 1 < published < held(1) / held(best_segments(inputs["layers"]))
