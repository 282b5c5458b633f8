"""A small classifier of digits, trained independently of any diffusion model to evaluate its samples.

Dimension letters: B images of a batch, D features, K classes.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from mlsys_lab.diffusion.networks.conditioning import Condition, require_images
from mlsys_lab.models.digits import CLASSES, SIZE, Digits

FEATURES, CHANNELS, CONDITION = 64, 32, 64
STEPS, BATCH, RATE = 500, 128, 3e-3


class Classifier(nn.Module):
    """Two convolutions and two linear layers: images (B, 1, 8, 8) -> log-probabilities (B, K).

    With noise levels (B,) it classifies noisy images, for classifier guidance; without, clean ones.
    """

    def __init__(self) -> None:
        super().__init__()
        self.level = Condition(CONDITION, 2 * CHANNELS, labels=0)
        self.first = nn.Conv2d(1, CHANNELS, 3, padding=1)
        self.second = nn.Conv2d(CHANNELS, 2 * CHANNELS, 3, padding=1)
        self.third = nn.Linear(2 * CHANNELS * (SIZE // 2) ** 2, FEATURES)
        self.last = nn.Linear(FEATURES, CLASSES)

    def features(self, x: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        """Features before the last layer, (B, D), of images (B, 1, 8, 8) with noise levels sigma (B,)."""
        require_images(x, 1, SIZE)
        sigma = sigma.to(x)
        condition = self.level((sigma + 0.01).log() / 4, None)[:, :, None, None]  # (B, 2·CHANNELS, 1, 1)
        h = F.relu(self.first(x / (1 + sigma**2).sqrt()[:, None, None, None]))
        h = F.max_pool2d(F.relu(self.second(h) + condition), 2)
        return F.relu(self.third(h.flatten(1)))

    def forward(self, x: torch.Tensor, sigma: torch.Tensor | None = None) -> torch.Tensor:
        """Log-probabilities of each class, (B, K)."""
        clean = torch.zeros(len(x), device=x.device) if sigma is None else sigma
        return F.log_softmax(self.last(self.features(x, clean)), dim=1)


def train_classifier(digits: Digits, *, seed: int = 0, steps: int = STEPS, noisy: float = 0.5) -> Classifier:
    """Train a classifier on digits, a fraction `noisy` of each batch with noise levels from 0.01 to 20."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        classifier = Classifier()
    optimizer = torch.optim.AdamW(classifier.parameters(), lr=RATE)
    for _ in range(steps):
        chosen = torch.randint(len(digits.images), (BATCH,), generator=generator)
        sigma = 10 ** (torch.rand(BATCH, generator=generator) * 3.3 - 2)
        sigma[int(noisy * BATCH) :] = 0
        noise = torch.randn(BATCH, 1, SIZE, SIZE, generator=generator) * sigma[:, None, None, None]
        loss = F.nll_loss(classifier(digits.images[chosen] + noise, sigma), digits.labels[chosen])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return classifier.requires_grad_(False).eval()
