"""Train a denoiser on labelled images, one step at a time.

Dimension letters: I images to train on, B images of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import nn

from mlsys_lab.diffusion.ema import EMA
from mlsys_lab.diffusion.preconditioning import Preconditioned
from mlsys_lab.diffusion.process import q_sample
from mlsys_lab.errors import InputError

Levels = Callable[[int, torch.Generator], torch.Tensor]
"""Draws the noise levels (B,) of a batch."""
WARMUP, BETAS, GRADIENT_NORM = 0.1, (0.9, 0.99), 1.0
"""Fraction of steps in which the learning rate rises; AdamW's betas; maximum gradient norm."""


def log_normal(mean: float = -1.2, deviation: float = 1.2) -> Levels:
    """Log-normal noise levels (EDM, arXiv:2206.00364, table 1)."""
    return lambda count, generator: torch.randn(count, generator=generator).mul(deviation).add(mean).exp()


def uniform_over(levels: torch.Tensor) -> Levels:
    """Uniform choice among the levels (T,) of a schedule (DDPM, arXiv:2006.11239, algorithm 1)."""
    return lambda count, generator: levels[torch.randint(len(levels), (count,), generator=generator)]


def p_losses(
    denoiser: Preconditioned, x0: torch.Tensor, sigma: torch.Tensor, noise: torch.Tensor, label: torch.Tensor | None
) -> torch.Tensor:
    """Mean squared error of each answer to x₀ (B, ...) with noise of levels sigma (B,), (B,) (DDPM, eq. 14).

    It is the error of denoised images with the weight 1/c_out², whatever the network predicts (EDM, eq. 8).
    """
    return squared_error(denoiser, q_sample(x0, sigma, noise), sigma, label, x0)


def squared_error(
    denoiser: Preconditioned, x: torch.Tensor, sigma: torch.Tensor, label: torch.Tensor | None, target: torch.Tensor
) -> torch.Tensor:
    """Mean squared error (B,) of denoised images against `target` (B, ...), over c_out²."""
    c_out = denoiser.at(sigma).out.to(x)
    error = (denoiser(x, sigma, label) - target).flatten(1) / c_out[:, None]
    return error.square().mean(1)


def train(
    denoiser: Preconditioned,
    images: torch.Tensor,
    labels: torch.Tensor,
    average: EMA[Preconditioned],
    *,
    steps: int,
    batch: int = 128,
    rate: float = 2e-3,
    levels: Levels | None = None,
    drop: float = 0.1,
    seed: int = 0,
) -> Iterator[tuple[int, float]]:
    """Train a denoiser in place; yield each step's number, from 1, and its loss.

    images (I, ...), labels (I,); `average` is updated after every step. AdamW with a warm-up to the learning rate
    `rate` and a cosine decay to 0 at the end. Levels are EDM's log-normal ones by default. A fraction `drop` of labels
    becomes the null class, one more than the last (arXiv:2207.12598, algorithm 1). The seed determines images, levels,
    noise and dropped labels of each step.
    """
    drawn = batches(images, labels, levels or log_normal(), batch=batch, drop=drop, seed=seed)
    losses = (p_losses(denoiser, x0, sigma, noise, label).mean() for x0, sigma, noise, label in drawn)
    for step, loss in optimize(denoiser, losses, steps=steps, rate=rate):
        average.update(denoiser)
        yield step, loss


def batches(
    images: torch.Tensor, labels: torch.Tensor, levels: Levels, *, batch: int, drop: float, seed: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Draw batches endlessly: images (B, ...), levels (B,), noise (B, ...) and labels (B,), some of them dropped.

    images (I, ...), labels (I,); a dropped label is one more than the last. InputError if their numbers differ.
    """
    if len(images) != len(labels) or not len(images):
        raise InputError("images and labels do not fit", got=f"{len(images)} and {len(labels)}", expected="as many")
    null = int(labels.max()) + 1
    generator = torch.Generator().manual_seed(seed)
    while True:
        chosen = torch.randint(len(images), (batch,), generator=generator)
        dropped = torch.rand(batch, generator=generator) < drop
        x0, label = images[chosen], labels[chosen].masked_fill(dropped, null)
        noise = torch.randn(x0.shape, generator=generator, dtype=x0.dtype)
        yield x0, levels(batch, generator), noise, label


def optimize(
    model: nn.Module, losses: Iterator[torch.Tensor], *, steps: int, rate: float
) -> Iterator[tuple[int, float]]:
    """Take `steps` steps of AdamW on losses computed on demand; yield number and loss.

    The learning rate rises linearly to `rate`, then falls along a cosine to 0. Gradients are clipped to norm 1.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=BETAS, fused=True)
    warmup = max(1, round(WARMUP * steps))
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda done: min((done + 1) / warmup, (1 + math.cos(math.pi * done / steps)) / 2)
    )
    for step, loss in zip(range(1, steps + 1), losses, strict=False):
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_NORM)
        optimizer.step()
        scheduler.step()
        yield step, loss.item()
