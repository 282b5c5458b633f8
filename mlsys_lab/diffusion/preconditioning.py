"""Prediction types, and how a network's prediction becomes a denoised image.

Every parametrisation is D(x; σ) = c_skip·x + c_out·F(c_in·x; c_noise), as EDM writes it (arXiv:2206.00364,
table 1 and eq. 7). With s = √(1 + σ²) and S = √(σ² + σ_d²), σ_d the standard deviation of the data:

| prediction | the network's output       | c_skip    | c_out      | c_in      | source                  |
|------------|----------------------------|-----------|------------|-----------|-------------------------|
| epsilon    | the noise ε                | 1         | -σ         | 1/s       | DDPM, eq. 12            |
| x0         | the image                  | 0         | 1          | 1/s       | arXiv:2202.00512, §4    |
| v          | √ᾱ·ε - √(1 - ᾱ)·x₀         | 1/s²      | -σ/s       | 1/s       | arXiv:2202.00512, §4    |
| flow       | the velocity, ε - x₀       | 1/(1 + σ) | -σ/(1 + σ) | 1/(1 + σ) | arXiv:2209.03003, eq. 1 |
| edm        | a blend of image and noise | σ_d²/S²   | σ·σ_d/S    | 1/S       | EDM, table 1            |

Under the loss weight 1/c_out² each is trained with the squared error of its output.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from mlsys_lab.diffusion.process import per_image
from mlsys_lab.errors import InputError, did_you_mean

PREDICTIONS = ("epsilon", "x0", "v", "flow", "edm")


class Coefficients(NamedTuple):
    """EDM's four coefficients at given noise levels, each (B,)."""

    skip: torch.Tensor
    out: torch.Tensor
    into: torch.Tensor
    noise: torch.Tensor


def coefficients(prediction: str, sigma: torch.Tensor, sigma_data: float = 0.5) -> Coefficients:
    """c_skip, c_out, c_in and c_noise at levels sigma (B,); only "edm" uses `sigma_data`.

    c_noise, which tells the network the noise level, is ln(σ)/4 for all (EDM, table 1). InputError for an unknown name.
    """
    noise = sigma.log() / 4
    length, both = (1 + sigma**2).sqrt(), (sigma**2 + sigma_data**2).sqrt()
    match prediction:
        case "epsilon":
            return Coefficients(torch.ones_like(sigma), -sigma, 1 / length, noise)
        case "x0":
            return Coefficients(torch.zeros_like(sigma), torch.ones_like(sigma), 1 / length, noise)
        case "v":
            return Coefficients(1 / length**2, -sigma / length, 1 / length, noise)
        case "flow":
            return Coefficients(1 / (1 + sigma), -sigma / (1 + sigma), 1 / (1 + sigma), noise)
        case "edm":
            return Coefficients(sigma_data**2 / both**2, sigma * sigma_data / both, 1 / both, noise)
    raise InputError(
        "unknown prediction",
        got=repr(prediction),
        expected=f"one of {', '.join(PREDICTIONS)}",
        help=did_you_mean(prediction, PREDICTIONS),
    )


class Preconditioned(nn.Module):
    """A network as a denoiser: x (B, ...), sigma (B,), label (B,) -> denoised images (B, ...).

    `network(x, noise, label)` gets c_in·x, c_noise and the labels, and returns the shape of x; `prediction` is its
    prediction type. InputError for an unknown type, and for NaN or infinite output (unchecked on a GPU, to avoid a
    synchronisation).
    """

    def __init__(self, network: nn.Module, prediction: str = "edm", sigma_data: float = 0.5) -> None:
        super().__init__()
        coefficients(prediction, torch.ones(1))
        self.network, self.prediction, self.sigma_data = network, prediction, sigma_data

    def forward(self, x: torch.Tensor, sigma: torch.Tensor, label: torch.Tensor | None = None) -> torch.Tensor:
        """Denoise x (B, ...) at levels sigma (B,): c_skip·x + c_out·F."""
        c = self.at(sigma)
        answer = self.network(per_image(c.into, x) * x, c.noise.to(x), label)
        if answer.device.type == "cpu" and not bool(answer.isfinite().all()):
            raise InputError("the network's output is not a number", help="its weights may be damaged")
        denoised: torch.Tensor = per_image(c.skip, x) * x + per_image(c.out, x) * answer
        return denoised

    def target(self, x0: torch.Tensor, x: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        """Training target of the network for x (B, ...), which is x₀ with noise of level sigma (B,)."""
        c = self.at(sigma)
        return (x0 - per_image(c.skip, x) * x) / per_image(c.out, x)

    def at(self, sigma: torch.Tensor) -> Coefficients:
        """Coefficients at levels sigma (B,)."""
        return coefficients(self.prediction, sigma, self.sigma_data)
