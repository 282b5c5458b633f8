"""The forward process and what follows from it exactly: its posterior, the score, the slope of the ODE.

Dimension letters: B images of a batch; the shape of an image (...) may be any.
"""

from __future__ import annotations

from typing import Protocol

import torch

from mlsys_lab.errors import InputError


class Denoiser(Protocol):
    """Whatever guesses the clean image: E[x₀ | x₀ + σ·n = x], which says all that a sampler needs to know."""

    def __call__(self, x: torch.Tensor, sigma: torch.Tensor, label: torch.Tensor | None = None, /) -> torch.Tensor:
        """Denoise x (B, ...) at levels sigma (B,), each image given its class in label (B,): (B, ...)."""
        ...


def q_sample(x0: torch.Tensor, sigma: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Noisy images x = x₀ + σ·n: x0 and noise (B, ...), levels sigma (B,) -> (B, ...) (DDPM, eq. 4, over √ᾱ)."""
    return x0 + per_image(sigma, x0) * noise


def posterior(
    x0: torch.Tensor, x: torch.Tensor, sigma: float, sigma_next: float, eta: float = 1.0
) -> tuple[torch.Tensor, float]:
    """Mean (B, ...) and deviation of a cleaner image at level `sigma_next`, given x at level `sigma` and x₀.

    With `eta` 1 it is DDPM's posterior (arXiv:2006.11239, eq. 6 and 7); with 0 it has no noise. Every value between
    leaves each level its marginal law (Song et al., DDIM, arXiv:2010.02502, eq. 7 and 16, over √ᾱ). No more noise
    can be drawn than the level holds: from a level to a higher one `eta` is 0.
    """
    variance = eta**2 * sigma_next**2 * (1 - sigma_next**2 / sigma**2)
    kept = (sigma_next**2 - variance) ** 0.5
    return x0 + kept * (x - x0) / sigma, variance**0.5


def score(denoised: torch.Tensor, x: torch.Tensor, sigma: float) -> torch.Tensor:
    """Gradient of log p(x; σ) from the denoised image, (B, ...) (EDM, arXiv:2206.00364, eq. 3)."""
    return (denoised - x) / sigma**2


def slope(denoised: torch.Tensor, x: torch.Tensor, sigma: float) -> torch.Tensor:
    """Slope dx/dσ of the probability-flow ODE, (B, ...), which is the noise that was guessed (EDM, eq. 4)."""
    return (x - denoised) / sigma


def per_image(values: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """Values (B,) with axes of length 1 behind them, so that each goes with one image of (B, ...); in their dtype."""
    if values.shape != images.shape[:1]:
        raise InputError("one value for each image", got=tuple(values.shape), expected=tuple(images.shape[:1]))
    return values.to(images).reshape(-1, *(1,) * (images.ndim - 1))
