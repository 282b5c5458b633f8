"""Mixtures of Gaussians, whose denoiser is known exactly: an oracle for samplers.

Letters: K components, D dimensions of a point, B points.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mlsys_lab.errors import InputError


@dataclass(frozen=True)
class Mixture:
    """K isotropic Gaussians of one standard deviation, each a class: an exact denoiser. The null class K is the
    mixture.

    `means` (K, D), `weights` (K,), which sum to 1. InputError otherwise.
    """

    means: torch.Tensor
    weights: torch.Tensor
    deviation: float

    def __post_init__(self) -> None:
        sums_to_1 = bool((self.weights >= 0).all()) and abs(float(self.weights.sum()) - 1) < 1e-6
        if self.means.ndim != 2 or self.weights.shape != self.means.shape[:1] or not sums_to_1:
            raise InputError(
                "not a mixture", got=tuple(self.means.shape), expected="means (K, D), weights (K,) of sum 1"
            )
        if self.deviation < 0:
            raise InputError("deviation out of range", got=self.deviation, expected="0 or more")

    @property
    def null(self) -> int:
        """Label of the null class."""
        return len(self.means)

    def __call__(self, x: torch.Tensor, sigma: torch.Tensor, label: torch.Tensor | None = None) -> torch.Tensor:
        """E[x₀ | x] for points x (B, D) at levels sigma (B,), within the class of label (B,): (B, D)."""
        shares = self.responsibilities(x, sigma)  # (B, K)
        if label is not None:
            one = torch.nn.functional.one_hot(label, self.null + 1)[:, :-1].to(shares)
            shares = torch.where((label == self.null)[:, None], shares, one)
        kept = (self.deviation**2 / (self.deviation**2 + sigma.to(x) ** 2))[:, None]  # (B, 1)
        return kept * x + (1 - kept) * shares @ self.means

    def responsibilities(self, x: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        """Posterior probability of each class for points x (B, D) at levels sigma (B,): (B, K)."""
        variance = (self.deviation**2 + sigma.to(x) ** 2)[:, None]
        return (self.weights.log() - (x[:, None] - self.means).square().sum(-1) / (2 * variance)).softmax(-1)

    def sample(self, count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw `count` points (count, D) and their classes (count,)."""
        label = torch.multinomial(self.weights, count, replacement=True, generator=generator)
        noise = torch.randn(count, self.means.shape[1], generator=generator, dtype=self.means.dtype)
        return self.means[label] + self.deviation * noise, label
