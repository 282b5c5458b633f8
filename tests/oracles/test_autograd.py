"""Published figures, reproduced by the engine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml

from mlsys_lab.autograd import Tensor, Value, best_segments, checkpoint_sequential, held_bytes, peak_units

ORACLES = yaml.safe_load(Path(__file__).with_name("autograd.yml").read_text(encoding="utf-8"))
SCALARS = {"Value": lambda x: Value(x), "Tensor": lambda x: Tensor(float(x), requires_grad=True)}


def approximately(oracle):
    return pytest.approx(oracle["expected"], rel=oracle["rel_tol"])


def number(x):
    return x.data if isinstance(x, Value) else x.item()


def slope(x):
    return x.grad if isinstance(x, Value) else x.grad.item()


@pytest.mark.parametrize("engine", SCALARS)
def test_ag02_the_textbook_graph(engine):
    x, y, z = (SCALARS[engine](ORACLES["AG02"]["inputs"][name]) for name in "xyz")
    f = (x + y) * z
    f.backward()
    assert [number(f), slope(x), slope(y), slope(z)] == approximately(ORACLES["AG02"])


@pytest.mark.parametrize("engine", SCALARS)
def test_ag03_the_sigmoid_neuron(engine):
    w0, w1, w2 = map(SCALARS[engine], ORACLES["AG03"]["inputs"]["w"])
    x0, x1 = map(SCALARS[engine], ORACLES["AG03"]["inputs"]["x"])
    f = 1 / (1 + (-(w0 * x0 + w1 * x1 + w2)).exp())
    f.backward()
    assert [number(f), *map(slope, (w0, x0, w1, x1, w2))] == approximately(ORACLES["AG03"])


def test_ag04_the_square_root_rule():
    n = ORACLES["AG04"]["inputs"]["n"]
    assert [min(peak_units(n, k) for k in range(1, n + 1)), best_segments(n)] == approximately(ORACLES["AG04"])


def test_ag05_the_published_saving_is_within_what_segments_can_give():
    inputs = ORACLES["AG05"]["inputs"]
    published = inputs["before_GB"] / inputs["after_GB"]
    assert published == approximately(ORACLES["AG05"])

    def held(segments):
        x = Tensor(torch.ones(1), requires_grad=True) + 1
        return held_bytes(checkpoint_sequential([Tensor.exp] * inputs["layers"], x, segments))

    # Equal layers are the best case: the real network's saving lies between none and that of √n segments.
    assert 1 < published < held(1) / held(best_segments(inputs["layers"]))
