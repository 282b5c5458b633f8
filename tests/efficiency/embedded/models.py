"""Small networks of odd sizes, and images for them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from mlsys_lab.efficiency.embedded import Network, quantize_network


class Example(NamedTuple):
    """A network of random weights, its int8 form, the images that it was calibrated on, and codes to run it on."""

    model: nn.Sequential
    network: Network
    calibration: torch.Tensor
    codes: np.ndarray


def _layers(name: str) -> tuple[nn.Sequential, tuple[int, ...]]:
    """The model of this name, and the shape of its images."""
    conv, relu = nn.Conv2d, nn.ReLU
    if name == "linear":
        return nn.Sequential(nn.Linear(13, 3)), (13,)
    if name == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(15, 7), relu(), nn.Linear(7, 5, bias=False)), (1, 3, 5)
    if name == "pool":
        return nn.Sequential(nn.MaxPool2d(3, stride=2)), (2, 7, 6)
    if name == "strides":
        layers = conv(3, 5, 3, stride=2, padding=2), relu(), conv(5, 2, 2, stride=3, bias=False)
        return nn.Sequential(*layers), (3, 9, 7)
    layers = conv(1, 3, 5, padding=1), relu(), nn.MaxPool2d(2, stride=1), conv(3, 4, 3, padding=2), nn.MaxPool2d(2)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * 3 * 3, 11), relu(), nn.Linear(11, 3)), (1, 7, 8)


NAMES = ("linear", "mlp", "pool", "strides", "convolutions")


def make_example(name: str, *, seed: int = 0) -> Example:
    """Codes are from the whole range of int8, so that activations leave the calibrated range and saturate."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model, shape = _layers(name)
        calibration = torch.rand(32, *shape) * 2 - 0.5
    network = quantize_network(model, calibration)
    codes = np.random.default_rng(seed).integers(-128, 128, (17, *network.layers[0].input_shape), np.int8)
    return Example(model, network, calibration, codes)
