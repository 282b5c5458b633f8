"""Training of a denoiser on images with classes, one step at a time.

Dimension letters: I images to train on, B images of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch

from mlsys_lab.diffusion.averaging import Average
from mlsys_lab.diffusion.preconditioning import Preconditioned
from mlsys_lab.diffusion.process import q_sample
from mlsys_lab.errors import InputError

Levels = Callable[[int, torch.Generator], torch.Tensor]
"""Draws the noise levels (B,) of a batch."""
WARMUP, BETAS, GRADIENT_NORM = 0.1, (0.9, 0.99), 1.0
"""Share of the steps in which the learning rate rises; AdamW's decays of its moments; most that a gradient may be."""


def log_normal(mean: float = -1.2, deviation: float = 1.2) -> Levels:
    """Levels whose logarithm is normal (EDM, arXiv:2206.00364, table 1)."""
    return lambda count, generator: torch.randn(count, generator=generator).mul(deviation).add(mean).exp()


def uniform_over(levels: torch.Tensor) -> Levels:
    """Levels (T,) of a schedule, each as often as another (DDPM, arXiv:2006.11239, algorithm 1)."""
    return lambda count, generator: levels[torch.randint(len(levels), (count,), generator=generator)]


def p_losses(
    denoiser: Preconditioned, x0: torch.Tensor, sigma: torch.Tensor, noise: torch.Tensor, label: torch.Tensor | None
) -> torch.Tensor:
    """Mean squared error of each answer to x₀ (B, ...) with noise of levels sigma (B,), (B,) (DDPM, eq. 14).

    It is the error of denoised images with the weight 1/c_out², whatever the network predicts (EDM, eq. 8).
    """
    x = q_sample(x0, sigma, noise)
    c_out = denoiser.at(sigma).out.to(x)
    error = (denoiser(x, sigma, label) - x0).flatten(1) / c_out[:, None]
    return error.square().mean(1)


def train(
    denoiser: Preconditioned,
    images: torch.Tensor,
    labels: torch.Tensor,
    *,
    steps: int,
    batch: int = 128,
    rate: float = 2e-3,
    levels: Levels | None = None,
    drop: float = 0.1,
    decay: float = 0.99,
    seed: int = 0,
) -> Iterator[tuple[int, float, Average[Preconditioned]]]:
    """Train a denoiser in place; yields each step's number, from 1, its loss, and the average of the weights so far.

    images (I, ...), labels (I,). AdamW with a warm-up to `rate` and a cosine down to 0 that ends with the run. Levels
    are EDM's log-normal ones by default. A share `drop` of labels gives way to the null class, the last one that the
    network knows (arXiv:2207.12598, algorithm 1). The seed decides order, levels, noise and dropped labels.
    """
    if len(images) != len(labels) or not len(images):
        raise InputError("images and labels do not fit", got=f"{len(images)} and {len(labels)}", expected="as many")
    levels = levels or log_normal()
    null = int(labels.max()) + 1
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(denoiser.parameters(), lr=rate, betas=BETAS, fused=True)
    warmup = max(1, round(WARMUP * steps))
    course = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda done: min((done + 1) / warmup, (1 + math.cos(math.pi * done / steps)) / 2)
    )
    average = Average(denoiser, decay)
    for step in range(1, steps + 1):
        chosen = torch.randint(len(images), (batch,), generator=generator)
        dropped = torch.rand(batch, generator=generator) < drop
        x0, label = images[chosen], labels[chosen].masked_fill(dropped, null)
        noise = torch.randn(x0.shape, generator=generator)
        loss = p_losses(denoiser, x0, levels(batch, generator), noise, label).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(denoiser.parameters(), GRADIENT_NORM)
        optimizer.step()
        course.step()
        average.update(denoiser)
        yield step, loss.item(), average
