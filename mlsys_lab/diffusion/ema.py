"""Exponential moving average of a model's weights, which samples better than the weights of any single step."""

from __future__ import annotations

import copy
from typing import Generic, TypeVar

import torch
from torch import nn

from mlsys_lab.errors import InputError

Model = TypeVar("Model", bound=nn.Module)


class EMA(Generic[Model]):
    """A copy of a model with averaged weights: average ← d·average + (1 - d)·weights after every update.

    The decay d is the smaller of `decay` and (1 + n)/(10 + n) after n updates, so that the random initial weights fade
    quickly. `model` is the averaged copy.
    """

    def __init__(self, model: Model, decay: float = 0.999) -> None:
        if not 0 <= decay < 1:
            raise InputError("decay out of range", got=decay, expected="0 to below 1")
        self.model: Model = copy.deepcopy(model).requires_grad_(False).eval()
        self.decay, self.updates = decay, 0

    @torch.no_grad()
    def update(self, model: Model) -> None:
        """Average in the model's current weights, and copy its buffers."""
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        weights = dict(model.named_parameters())
        for name, average in self.model.named_parameters():
            average.lerp_(weights[name], 1 - decay)
        for mine, its in zip(self.model.buffers(), model.buffers(), strict=True):
            mine.copy_(its)
