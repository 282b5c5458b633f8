"""Guidance: images that are more of their class than the class's own images are, at the price of variety.

A scale s gives D = D_u + s·(D_c - D_u), as in GLIDE and DiT: 1 is no guidance, 0 leaves the class out. Ho and Salimans
(arXiv:2207.12598, eq. 6) write (1 + w)·ε_c - w·ε_u, which is s = 1 + w: the rule is linear, so it is one for denoised
images, noise and scores.

Dimension letters: B images of a batch, G those of them that are guided, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, cast

import torch

from mlsys_lab.diffusion.process import Denoiser, per_image
from mlsys_lab.errors import InputError

Value = TypeVar("Value", float, torch.Tensor)


def guide(conditional: Value, unconditional: Value, scale: Value) -> Value:
    """Guided value: unconditional + scale·(conditional - unconditional).

    >>> guide(0.5, 0.2, scale=4)
    1.4
    """
    return unconditional + scale * (conditional - unconditional)


def scale_of(w: float) -> float:
    """The scale s = 1 + w of guidance that Ho and Salimans write with the weight w (arXiv:2207.12598, eq. 6).

    >>> scale_of(0), scale_of(3)
    (1, 4)
    """
    return 1 + w


@dataclass(frozen=True)
class ClassifierFree:
    """A denoiser guided by itself without the class: one call of B + G images, G those whose level is in the interval.

    `scale` is one for all images or (B,); `null` is the label on which the network learned to do without a class. With
    levels `low` to `high` guidance acts there alone, and elsewhere costs nothing (arXiv:2404.07724).
    InputError where there is no null class, no label to leave out, and for scales that are no numbers or do not fit.
    """

    denoiser: Denoiser
    scale: float | torch.Tensor
    null: int | None
    low: float = 0.0
    high: float = math.inf

    def __post_init__(self) -> None:
        if self.null is None:
            raise InputError(
                "guidance needs a null class", got="a network without one", help="train with labels dropped, or scale 1"
            )
        if not 0 <= self.low <= self.high:
            raise InputError("not an interval of levels", got=f"{self.low} to {self.high}", expected="0 <= low <= high")
        if not bool(torch.as_tensor(self.scale).isfinite().all()):
            raise InputError("scale of guidance is not a number", got=self.scale)

    def __call__(self, x: torch.Tensor, sigma: torch.Tensor, label: torch.Tensor | None = None) -> torch.Tensor:
        """Denoise x (B, ...) at levels sigma (B,), guided towards label (B,): (B, ...)."""
        if label is None:
            raise InputError("guidance needs labels", got="none", expected="a class for each image")
        scale = torch.as_tensor(self.scale, device=x.device, dtype=x.dtype)
        if scale.shape not in ((), x.shape[:1]):
            raise InputError("one scale, or one for each image", got=tuple(scale.shape), expected=tuple(x.shape[:1]))
        inside = (sigma >= self.low) & (sigma <= self.high)
        guided = (inside.to(x.device) & (scale != 1)).nonzero().flatten()  # (G,)
        return denoise_guided(self.denoiser, x, sigma, label, scale.expand(len(x)), guided, cast(int, self.null))


def denoise_guided(
    denoiser: Denoiser,
    x: torch.Tensor,
    sigma: torch.Tensor,
    label: torch.Tensor,
    scale: torch.Tensor,
    guided: torch.Tensor,
    null: int,
) -> torch.Tensor:
    """Denoise x (B, ...) at levels sigma (B,) towards label (B,), with guidance for some of the images: (B, ...).

    These are images `guided` (G,), by the scales (B,) of all in the dtype of x; the denoiser is called once, with B + G
    images, of which the last G have the label `null`.
    """
    both = denoiser(
        torch.cat([x, x[guided]]),
        torch.cat([sigma, sigma[guided]]),
        torch.cat([label, torch.full_like(label[guided], null)]),
    )  # (B + G, ...)
    denoised, without = both[: len(x)], both[len(x) :]
    further = guide(denoised[guided], without, per_image(scale[guided], without))
    return denoised.index_copy(0, guided, further)


Classify = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Log-probabilities (B, K) of each class for noisy images (B, ...) at levels (B,)."""


@dataclass(frozen=True)
class ClassifierGuided:
    """A denoiser pushed by a classifier of noisy images: D + s·σ²·∇ log p(class | x) (arXiv:2105.05233, algorithm 2).

    What is pushed is the denoiser without a class: it is called with the label `null`, or with none. InputError without
    labels, for labels that the classifier does not know, and for a scale that is no number.
    """

    denoiser: Denoiser
    classify: Classify
    scale: float
    null: int | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.scale):
            raise InputError("scale of guidance is not a number", got=self.scale)

    def __call__(self, x: torch.Tensor, sigma: torch.Tensor, label: torch.Tensor | None = None) -> torch.Tensor:
        """Denoise x (B, ...) at levels sigma (B,), pushed towards label (B,): (B, ...)."""
        if label is None:
            raise InputError("guidance needs labels", got="none", expected="a class for each image")
        with torch.enable_grad():
            watched = x.detach().requires_grad_()
            known = self.classify(watched, sigma)  # (B, K)
            if not bool(((label >= 0) & (label < known.shape[1])).all()):
                got = f"{int(label.min())} to {int(label.max())}"
                raise InputError("no such class", got=got, expected=f"0 to {known.shape[1] - 1}")
            chosen = known.gather(1, label[:, None])
            (gradient,) = torch.autograd.grad(chosen.sum(), watched)
        without = None if self.null is None else torch.full_like(label, self.null)
        return self.denoiser(x, sigma, without) + self.scale * per_image(sigma**2, x) * gradient
