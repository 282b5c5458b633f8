"""SmoothQuant: move outliers of activations into the weights that follow a norm, where they cost less.

Xiao et al. 2022, SmoothQuant (arXiv:2211.10438), §4. Dimension letters: I inputs, B batch, T tokens.
"""

from __future__ import annotations

import copy

import torch

from mlsys_lab.efficiency.blocks import observe_model
from mlsys_lab.efficiency.quantization.folding import norm_links, scale_input
from mlsys_lab.errors import InputError
from mlsys_lab.models import Transformer


def smooth_scale(activation_max: torch.Tensor, weight_max: torch.Tensor, alpha: float = 0.5) -> torch.Tensor:
    """What activations are divided by and weights multiplied by, for each input: (I,) and (I,) -> (I,), equation 4.

    activation_max^α / weight_max^(1-α) of the largest magnitudes of each input; 1 where either is zero. With α = ½ both
    have the same largest magnitude afterwards. InputError for an α outside 0 to 1, and for NaN and infinities.
    """
    if not 0 <= alpha <= 1:
        raise InputError("alpha out of range", got=alpha, expected="0 to 1")
    if activation_max.shape != weight_max.shape:
        got = f"{tuple(activation_max.shape)} and {tuple(weight_max.shape)}"
        raise InputError("largest magnitudes of different inputs", got=got, expected="(I,) both")
    if not (activation_max.isfinite() & weight_max.isfinite()).all():
        raise InputError("largest magnitudes that are not finite", expected="activations of real text")
    scale = activation_max.double() ** alpha / weight_max.double() ** (1 - alpha)
    return scale.masked_fill((activation_max == 0) | (weight_max == 0), 1).to(activation_max.dtype)


def smooth(model: Transformer, calibration: torch.Tensor, alpha: float = 0.5) -> Transformer:
    """A copy of a model that computes the same function, with smoother activations after each norm.

    The largest activations are those of a forward pass over `calibration`, token ids (B, T). The division is folded
    into the norm's weights. InputError for no tokens.
    """
    smoothed = copy.deepcopy(model)
    links = [link for block in smoothed.blocks for link in norm_links(block)]  # type: ignore[arg-type]
    seen = observe_model(smoothed, [link.consumers[0] for link in links], calibration)
    for link in links:
        weight_max = torch.stack([consumer.weight.detach().abs().amax(0) for consumer in link.consumers]).amax(0)
        scale_input(link, smooth_scale(seen[link.consumers[0]].abs().amax(0), weight_max, alpha))
    return smoothed
