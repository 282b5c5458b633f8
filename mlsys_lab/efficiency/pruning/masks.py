"""Masks of weights: True where a weight is kept, by magnitude, by Wanda's score, or n of every m.

Of equal scores the earlier is kept, so that a mask has exactly as many weights as asked for.
Dimension letters: O outputs, I inputs, n tokens.
"""

from __future__ import annotations

from typing import Literal

import torch

from mlsys_lab.errors import InputError
from mlsys_lab.validation import require_integer

Density = float | Literal["2:4"]
"""Fraction of weights that are kept, in (0, 1]; or "2:4", two of every four consecutive inputs."""


def magnitude_mask(weight: torch.Tensor, density: float, *, per_output: bool = False) -> torch.Tensor:
    """Keep the largest magnitudes of a layer, or of each of its outputs: weight (O, I) -> bool (O, I).

    InputError for a density outside (0, 1] and weights that are not finite.
    """
    require_finite("weights", weight)
    scores = weight.detach().abs()
    if per_output:
        return keep_fraction(scores, density)
    return keep_fraction(scores.flatten(), density).view_as(weight)


def wanda_mask(weight: torch.Tensor, input_norm: torch.Tensor, density: float) -> torch.Tensor:
    """Keep the largest |weight| · ‖input‖ of each output: weight (O, I), norms (I,) -> bool (O, I).

    Sun et al. 2023, Wanda (arXiv:2306.11695), §3. InputError as in `magnitude_mask`, and for norms of another layer.
    """
    return keep_fraction(wanda_scores(weight, input_norm), density)


def wanda_scores(weight: torch.Tensor, input_norm: torch.Tensor) -> torch.Tensor:
    """|weight| · ‖input‖ (Wanda, equation 1): weight (O, I), norms (I,) -> (O, I); InputError as in `wanda_mask`."""
    require_finite("weights", weight)
    if input_norm.shape != weight.shape[1:]:
        raise InputError("input norms of another layer", got=tuple(input_norm.shape), expected=tuple(weight.shape[1:]))
    require_finite("input norms", input_norm)
    return weight.detach().abs() * input_norm


def two_four_mask(scores: torch.Tensor) -> torch.Tensor:
    """Keep the two largest of every four consecutive scores: (..., I) -> bool (..., I).

    What sparse tensor cores multiply (Mishra et al. 2021, arXiv:2104.08378, §3). InputError as in `n_m_mask`.
    """
    return n_m_mask(scores, 2, 4)


def n_m_mask(scores: torch.Tensor, n: int, m: int) -> torch.Tensor:
    """Keep the n largest of every m consecutive scores: (..., I) -> bool (..., I).

    InputError unless 1 <= n <= m and m divides I, and for scores that are not finite.
    """
    require_finite("scores", scores)
    require_groups(scores.shape[-1], n, m)
    return keep_largest(scores.reshape(*scores.shape[:-1], -1, m), n).flatten(-2)


def keep_fraction(scores: torch.Tensor, density: float) -> torch.Tensor:
    """Keep the largest scores of each row: (..., I) -> bool (..., I); InputError for a density outside (0, 1]."""
    require_density(density)
    return keep_largest(scores, scores.shape[-1] - round((1 - density) * scores.shape[-1]))


def keep_largest(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Keep the `count` largest scores of each row, of equal ones the earlier: (..., I) -> bool (..., I)."""
    order = scores.detach().argsort(dim=-1, descending=True, stable=True)
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, order[..., :count], True)


def apply_mask(weight: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Weights with 0 where the mask is False, both (O, I); InputError for a mask of another shape or dtype."""
    if mask.shape != weight.shape or mask.dtype != torch.bool:
        got = f"{tuple(mask.shape)} of {mask.dtype}"
        raise InputError("mask of another weight", got=got, expected=f"{tuple(weight.shape)} of {torch.bool}")
    return weight.masked_fill(~mask, 0)


def require_density(density: object) -> None:
    """Raise InputError unless a density is a number in (0, 1]."""
    if isinstance(density, bool) or not isinstance(density, int | float) or not 0 < density <= 1:
        raise InputError("density out of range", got=repr(density), expected="a number above 0, at most 1")


def require_groups(inputs: int, n: int, m: int) -> None:
    """Raise InputError unless n of every m inputs can be kept."""
    require_integer("n", n)
    require_integer("m", m, at_least=n)
    if inputs % m:
        raise InputError(f"groups of {m} do not divide the inputs", got=f"{inputs} inputs", expected=f"multiple of {m}")


def require_finite(name: str, values: torch.Tensor) -> None:
    """Raise InputError with the position of the first value that is infinite or NaN."""
    wrong = (~values.detach().isfinite()).nonzero()
    if len(wrong):
        position = tuple(wrong[0].tolist())
        got = f"{values[position].item()} at {list(position)}, {len(wrong)} in all"
        raise InputError(f"{name} are not finite", got=got, expected="finite numbers")
