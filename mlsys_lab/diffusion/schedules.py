"""Noise schedules: the betas of training, and the noise levels of a sampler.

A noise level is σ, the standard deviation of noise on unscaled data: x = x₀ + σ·n (EDM, Karras et al.,
arXiv:2206.00364). DDPM's x_t = √ᾱ·x₀ + √(1 - ᾱ)·ε is √ᾱ times that, with σ = √((1 - ᾱ)/ᾱ); rectified flow's x_t = (1 -
t)·x₀ + t·ε is 1 - t times that, with σ = t/(1 - t). So all methods share the same levels and differ in their spacing.

Letters: T steps of a schedule, S steps of a sampler. All results are in float64.
"""

from __future__ import annotations

import math

import torch

from mlsys_lab.errors import InputError
from mlsys_lab.validation import require_at_least_one


def linear_betas(steps: int = 1000, first: float = 1e-4, last: float = 0.02) -> torch.Tensor:
    """DDPM's linear variances β of the T steps, (T,) (Ho et al., arXiv:2006.11239, §4)."""
    require_at_least_one(steps=steps)
    if not 0 < first <= last < 1:
        raise InputError("betas out of range", got=f"{first} to {last}", expected="0 < first <= last < 1")
    return torch.linspace(first, last, steps, dtype=torch.float64)


def cosine_betas(steps: int = 1000, offset: float = 0.008, max_beta: float = 0.999) -> torch.Tensor:
    """Variances β (T,) for which ᾱ falls like a squared cosine (Nichol and Dhariwal, arXiv:2102.09672, eq. 17).

    β is limited to `max_beta`, as in the paper, so that the last step leaves something of the data.
    """
    require_at_least_one(steps=steps)
    times = torch.linspace(0, 1, steps + 1, dtype=torch.float64)
    falling = torch.cos((times + offset) / (1 + offset) * math.pi / 2) ** 2
    return (1 - falling[1:] / falling[:-1]).clamp(max=max_beta)


def alphas_cumprod(betas: torch.Tensor) -> torch.Tensor:
    """ᾱ_t, the product of all 1 - β up to step t: (T,) -> (T,) (DDPM, eq. 4); InputError unless all are in (0, 1)."""
    if betas.ndim != 1 or not len(betas) or not bool(((betas > 0) & (betas < 1)).all()):
        raise InputError("not a schedule of variances", got=_describe(betas), expected="betas (T,), each in (0, 1)")
    return (1 - betas.double()).cumprod(0)


def sigmas(alphas_cumprod: torch.Tensor) -> torch.Tensor:
    """Noise levels σ = √((1 - ᾱ)/ᾱ) of a schedule, increasing: (T,) -> (T,) (EDM, table 1, "VP")."""
    return ((1 - alphas_cumprod) / alphas_cumprod).sqrt()


def respace(levels: torch.Tensor, steps: int) -> torch.Tensor:
    """Noise schedule of S of the T levels of training, evenly spaced, including the first and the last.

    levels (T,), increasing -> (S + 1,), decreasing to 0. InputError for more steps than levels.
    """
    if not 1 <= steps <= len(levels):
        raise InputError("more steps than the schedule has, or none", got=steps, expected=f"1 to {len(levels)}")
    chosen = torch.linspace(len(levels) - 1, 0, steps, dtype=torch.float64).round().long()
    return check_grid(torch.cat([levels[chosen].double(), torch.zeros(1, dtype=torch.float64)]))


def edm_grid(steps: int, sigma_min: float = 0.002, sigma_max: float = 80.0, rho: float = 7.0) -> torch.Tensor:
    """EDM's levels, evenly spaced in σ^(1/ρ), then 0: (S + 1,), decreasing (arXiv:2206.00364, eq. 5)."""
    require_at_least_one(steps=steps)
    if not (0 < sigma_min < sigma_max < math.inf and rho > 0):
        got = f"sigma_min {sigma_min}, sigma_max {sigma_max}, rho {rho}"
        raise InputError("levels out of range", got=got, expected="0 < sigma_min < sigma_max and rho > 0")
    line = torch.linspace(sigma_max ** (1 / rho), sigma_min ** (1 / rho), steps, dtype=torch.float64)
    return torch.cat([line**rho, torch.zeros(1, dtype=torch.float64)])


def flow_grid(steps: int, sigma_max: float = 80.0) -> torch.Tensor:
    """Rectified flow's levels, evenly spaced in t = σ/(1 + σ), down to 0: (S + 1,) (Liu et al., arXiv:2209.03003).

    t = 1 would be an infinite level: the schedule starts at `sigma_max`.
    """
    require_at_least_one(steps=steps)
    if not 0 < sigma_max < math.inf:
        raise InputError("sigma_max out of range", got=sigma_max, expected="a positive number")
    times = torch.linspace(sigma_max / (1 + sigma_max), 0, steps + 1, dtype=torch.float64)
    return times / (1 - times)


def check_grid(grid: torch.Tensor) -> torch.Tensor:
    """Return a sampler's levels (S + 1,); InputError unless they are finite and decrease, to 0 or above."""
    falls = grid.ndim == 1 and len(grid) > 1 and bool(grid.isfinite().all() and (grid.diff() < 0).all())
    if not falls or grid[-1] < 0:
        raise InputError("not levels to walk down", got=_describe(grid), expected="two or more, falling, none below 0")
    return grid


def _describe(values: torch.Tensor) -> str:
    listed = ", ".join(f"{value:.4g}" for value in values.flatten()[:4].tolist())
    return f"shape {tuple(values.shape)}: {listed}{', ...' if values.numel() > 4 else ''}"
