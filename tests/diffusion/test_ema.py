"""The average of weights: its closed form, and that the model itself is left alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mlsys_lab.diffusion.ema import EMA
from mlsys_lab.errors import InputError


def test_the_average_is_the_sum_that_its_decays_say():
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    average, expected = EMA(model, decay=0.5), 0.0
    for n in range(1, 12):
        nn.init.constant_(model.weight, n)
        average.update(model)
        decay = min(0.5, (1 + n) / (10 + n))
        expected = decay * expected + (1 - decay) * n
        assert average.model.weight.item() == pytest.approx(expected, rel=1e-6)
    assert model.weight.item() == 11 and not average.model.weight.requires_grad


def test_buffers_are_taken_as_they_are():
    model = nn.BatchNorm1d(2)
    average = EMA(model)
    model(torch.randn(8, 2) + 3)
    average.update(model)
    assert torch.equal(average.model.running_mean, model.running_mean)


def test_a_bad_decay_is_one_line():
    with pytest.raises(InputError, match=r"decay out of range: got 1\.0, expected 0 to below 1"):
        EMA(nn.Linear(1, 1), decay=1.0)
