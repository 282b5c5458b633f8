"""Cost of sampling and training: network evaluations, compared with an autoregressive model of equal size.

Letters: N parameters, T tokens of an image, S steps of a sampler. A multiply-add is two FLOPs.
"""

from __future__ import annotations

from typing import NamedTuple

from mlsys_lab.diffusion.samplers import Sampler
from mlsys_lab.flops.compute import six_n, two_n
from mlsys_lab.validation import require_at_least_one, require_positive


def evaluations(sampler: Sampler, steps: int, *, guided: bool = False) -> int:
    """Number of function evaluations (NFE) for one image in `steps` steps; guidance doubles it.

    >>> from mlsys_lab.diffusion.samplers import DDIM, Heun
    >>> evaluations(DDIM(eta=1), 1000), evaluations(DDIM(), 50, guided=True), evaluations(Heun(), 18)
    (1000, 100, 35)
    """
    require_at_least_one(steps=steps)
    return sampler.evaluations(steps) * (2 if guided else 1)


class Cost(NamedTuple):
    """FLOPs to generate a batch of images, and bytes of weights read for it."""

    flops: float
    weight_bytes: float

    @property
    def intensity(self) -> float:
        """FLOPs per byte of weights read."""
        return self.flops / self.weight_bytes


def diffusion_cost(
    n_parameters: float, tokens: int, passes: int, batch: int = 1, *, guided: bool = False, element_bytes: float = 2
) -> Cost:
    """Cost of `batch` images of T tokens: each of `passes` evaluations processes all tokens of all images.

    2·N FLOPs per token; attention is ignored. A guided pass has twice the images and reads the weights once.
    """
    require_at_least_one(tokens=tokens, passes=passes, batch=batch)
    require_positive(element_bytes=element_bytes)
    images = batch * (2 if guided else 1)
    return Cost(passes * two_n(n_parameters, images * tokens), passes * n_parameters * element_bytes)


def autoregressive_cost(n_parameters: float, tokens: int, batch: int = 1, *, element_bytes: float = 2) -> Cost:
    """Cost of `batch` images generated token by token with a KV cache: one pass per token.

    Compared with `diffusion_cost` of S passes: S times fewer FLOPs, T/S times as many bytes. At batch 1 it is
    memory-bound on any device, where diffusion, with T times the arithmetic intensity, seldom is.

    >>> ours, theirs = diffusion_cost(675e6, 256, passes=50), autoregressive_cost(675e6, 256)
    >>> ours.flops / theirs.flops, theirs.weight_bytes / ours.weight_bytes, ours.intensity, theirs.intensity
    (50.0, 5.12, 256.0, 1.0)
    """
    require_at_least_one(tokens=tokens, batch=batch)
    require_positive(element_bytes=element_bytes)
    return Cost(two_n(n_parameters, batch * tokens), tokens * n_parameters * element_bytes)


def training_cost(n_parameters: float, tokens: int, images: int) -> float:
    """FLOPs of training on `images` images of T tokens: 6·N·T each, for diffusion and autoregression alike.

    They differ in what is learned per pass: each token of a text has its own loss, while diffusion sees one noise level
    per pass and needs many passes over an image.
    """
    require_at_least_one(tokens=tokens, images=images)
    return six_n(n_parameters, tokens * images)
