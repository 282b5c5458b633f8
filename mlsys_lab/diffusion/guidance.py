"""Guidance: samples more typical of their class, at the price of diversity.

A guidance scale s gives D = D_u + s·(D_c - D_u), as in GLIDE and DiT: 1 is no guidance, 0 drops the class. Ho and
Salimans (arXiv:2207.12598, eq. 6) write (1 + w)·ε_c - w·ε_u, which is s = 1 + w. The rule is linear, so it is the same
for denoised images, noise and scores.

Dimension letters: B images of a batch, G of them guided, K classes.
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


def scale_from_weight(w: float) -> float:
    """Guidance scale s = 1 + w for the weight w of Ho and Salimans (arXiv:2207.12598, eq. 6).

    >>> scale_from_weight(0), scale_from_weight(3)
    (1, 4)
    """
    return 1 + w


@dataclass(frozen=True)
class ClassifierFreeGuidance:
    """Classifier-free guidance: one call with B + G images, where G images are inside the guidance interval.

    `scale` is one for all images or (B,); `null` is the null class's label. Guidance acts on levels `low` to `high`
    only, and costs nothing elsewhere (arXiv:2404.07724). InputError without a null class or labels, and for scales that
    are not numbers or do not match.
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
    """Denoise x (B, ...) at levels sigma (B,) towards label (B,), with guidance for the images `guided` (G,): (B, ...).

    `scale` (B,) has the dtype of x. The denoiser is called once, with B + G images, the last G with the label `null`.
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
class ClassifierGuidance:
    """Classifier guidance with a classifier of noisy images: D + s·σ²·∇ log p(class | x) (arXiv:2105.05233, alg. 2).

    The denoiser is unconditional: called with the label `null`, or without labels. InputError without labels, for
    labels unknown to the classifier, and for a scale that is not a number.
    """

    denoiser: Denoiser
    classify: Classify
    scale: float
    null: int | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.scale):
            raise InputError("scale of guidance is not a number", got=self.scale)

    def __call__(self, x: torch.Tensor, sigma: torch.Tensor, label: torch.Tensor | None = None) -> torch.Tensor:
        """Denoise x (B, ...) at levels sigma (B,), guided towards label (B,): (B, ...)."""
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
