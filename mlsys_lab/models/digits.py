"""scikit-learn's 1,797 handwritten digits of 8 × 8 pixels, scaled to [-1, 1], with a held-out part."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch

CLASSES, SIZE = 10, 8
HELD_OUT = 5
"""One image in HELD_OUT is held out, in a fixed random order."""


class Digits(NamedTuple):
    """Images (I, 1, 8, 8) in [-1, 1], float32, and their classes (I,)."""

    images: torch.Tensor
    labels: torch.Tensor


@cache
def load_digits() -> tuple[Digits, Digits]:
    """Training digits, 1,437, and held-out digits, 360; read-only. Loading scikit-learn takes a second."""
    from sklearn import datasets

    pixels, classes = datasets.load_digits(return_X_y=True)
    order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, SIZE, SIZE)[order] / 8 - 1
    labels = torch.tensor(classes, dtype=torch.int64)[order]
    held = torch.arange(len(order)) % HELD_OUT == 0
    return Digits(images[~held], labels[~held]), Digits(images[held], labels[held])
