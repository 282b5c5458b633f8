"""A small convolutional classifier of handwritten digits, to run on a microcontroller.

Dimension letters: B images of a batch, K classes.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

CLASSES, SIZE = 10, 8
HELD_OUT = 5
"""One image in HELD_OUT is held out, in a fixed random order."""
CHANNELS = (16, 32)
STEPS, BATCH, PEAK_LR = 300, 64, 5e-3


class Digits(NamedTuple):
    """Images (B, 1, 8, 8) in [0, 1], float32, and their classes (B,)."""

    images: torch.Tensor
    labels: torch.Tensor


@cache
def load_digits() -> tuple[Digits, Digits]:
    """scikit-learn's 1,797 digits, read-only: 1,437 for training and 360 held out."""
    from sklearn import datasets

    pixels, classes = datasets.load_digits(return_X_y=True)
    order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, SIZE, SIZE)[order] / 16
    labels = torch.tensor(classes, dtype=torch.int64)[order]
    held = torch.arange(len(order)) % HELD_OUT == 0
    return Digits(images[~held], labels[~held]), Digits(images[held], labels[held])


def train_classifier(digits: Digits, *, seed: int = 0) -> nn.Sequential:
    """Two convolutions, each with ReLU and pooling, and a linear layer: images (B, 1, 8, 8) -> logits (B, K)."""
    first, second = CHANNELS
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(
            *(nn.Conv2d(1, first, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(first, second, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(second * (SIZE // 4) ** 2, CLASSES)),
        )
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR)
    decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, STEPS)
    for _ in range(STEPS):
        chosen = torch.randint(len(digits.images), (BATCH,), generator=generator)
        loss = F.cross_entropy(model(digits.images[chosen]), digits.labels[chosen])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        decay.step()
    return model.requires_grad_(False).eval()
