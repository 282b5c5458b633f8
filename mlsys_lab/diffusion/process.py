"""The forward process and what follows from it exactly: posterior, score, and the ODE's derivative.

Dimension letters: B images of a batch; an image may have any shape (...).
"""

from __future__ import annotations

from typing import Protocol

import torch

from mlsys_lab.errors import InputError


class Denoiser(Protocol):
    """Estimates the clean image: E[x₀ | x₀ + σ·n = x], all that a sampler needs."""

    def __call__(self, x: torch.Tensor, sigma: torch.Tensor, label: torch.Tensor | None = None, /) -> torch.Tensor:
        """Denoise x (B, ...) at levels sigma (B,) with classes label (B,): (B, ...)."""
        ...


def q_sample(x0: torch.Tensor, sigma: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Noisy images x = x₀ + σ·n: x0 and noise (B, ...), levels sigma (B,) -> (B, ...) (DDPM, eq. 4, divided by √ᾱ)."""
    return x0 + per_image(sigma, x0) * noise


def posterior(
    x0: torch.Tensor, x: torch.Tensor, sigma: float, sigma_next: float, eta: float = 1.0
) -> tuple[torch.Tensor, float]:
    """Mean (B, ...) and deviation of a cleaner image at level `sigma_next`, given x at level `sigma` and x₀.

    `eta` 1 is DDPM's posterior (arXiv:2006.11239, eq. 6 and 7); 0 is deterministic. Every value between preserves the
    marginals (Song et al., DDIM, arXiv:2010.02502, eq. 7 and 16, divided by √ᾱ). A step to a higher level needs `eta`
    0.
    """
    variance = eta**2 * sigma_next**2 * (1 - sigma_next**2 / sigma**2)
    kept = (sigma_next**2 - variance) ** 0.5
    return x0 + kept * (x - x0) / sigma, variance**0.5


def score(denoised: torch.Tensor, x: torch.Tensor, sigma: float) -> torch.Tensor:
    """Score ∇ log p(x; σ) from the denoised image, (B, ...) (EDM, arXiv:2206.00364, eq. 3)."""
    return (denoised - x) / sigma**2


def slope(denoised: torch.Tensor, x: torch.Tensor, sigma: float) -> torch.Tensor:
    """Derivative dx/dσ of the probability-flow ODE, (B, ...): the predicted noise (EDM, eq. 4)."""
    return (x - denoised) / sigma


def per_image(values: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """Append axes of length 1 to values (B,) so that they broadcast over images (B, ...); in the images' dtype."""
    if values.shape != images.shape[:1]:
        raise InputError("one value for each image", got=tuple(values.shape), expected=tuple(images.shape[:1]))
    return values.to(images).reshape(-1, *(1,) * (images.ndim - 1))
