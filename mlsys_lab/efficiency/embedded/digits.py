"""A small convolutional classifier of handwritten digits, to run on a microcontroller.

Dimension letters: B images of a batch, K classes.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from mlsys_lab.models import digits
from mlsys_lab.models.digits import CLASSES, SIZE, Digits

CHANNELS = (16, 32)
STEPS, BATCH, PEAK_LR = 300, 64, 5e-3


def load_digits() -> tuple[Digits, Digits]:
    """scikit-learn's digits with pixels in [0, 1]: 1,437 for training and 360 held out."""
    training, held_out = (Digits((part.images + 1) / 2, part.labels) for part in digits.load_digits())
    return training, held_out


def train_classifier(training: Digits, *, seed: int = 0) -> nn.Sequential:
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
        chosen = torch.randint(len(training.images), (BATCH,), generator=generator)
        loss = F.cross_entropy(model(training.images[chosen]), training.labels[chosen])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        decay.step()
    return model.requires_grad_(False).eval()
