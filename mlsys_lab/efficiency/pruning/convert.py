"""Prune a model: a copy whose blocks have linear layers with zeros."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import torch
from torch import nn

from mlsys_lab.efficiency.blocks import convert_linears
from mlsys_lab.efficiency.pruning.masks import (
    Density,
    apply_mask,
    keep_fraction,
    magnitude_mask,
    require_finite,
    two_four_mask,
    wanda_scores,
)
from mlsys_lab.efficiency.pruning.sparsegpt import sparsegpt
from mlsys_lab.efficiency.quantization.gptq import hessian
from mlsys_lab.errors import InputError
from mlsys_lab.models import Transformer
from mlsys_lab.validation import require_one_of


def _magnitude(weight: torch.Tensor, _: torch.Tensor, density: Density) -> torch.Tensor:
    require_finite("weights", weight)
    mask = two_four_mask(weight.abs()) if density == "2:4" else magnitude_mask(weight, density)
    return apply_mask(weight, mask)


def _wanda(weight: torch.Tensor, inputs: torch.Tensor, density: Density) -> torch.Tensor:
    scores = wanda_scores(weight, inputs.norm(dim=0))
    return apply_mask(weight, two_four_mask(scores) if density == "2:4" else keep_fraction(scores, density))


def _sparsegpt(weight: torch.Tensor, inputs: torch.Tensor, density: Density) -> torch.Tensor:
    return sparsegpt(weight, hessian(inputs), density).weight


METHODS: Mapping[str, Callable[[torch.Tensor, torch.Tensor, Density], torch.Tensor]] = {
    "magnitude": _magnitude,
    "wanda": _wanda,
    "sparsegpt": _sparsegpt,
}
"""Pruning methods by name: pruned weights (O, I) from weights, inputs (n, I) and density.

A fraction is of each layer ("magnitude"), of each output ("wanda"), or of 128 columns of a layer ("sparsegpt").
"""
CALIBRATED = ("wanda", "sparsegpt")


def prune(model: Transformer, method: str, density: Density, calibration: torch.Tensor | None = None) -> Transformer:
    """A copy of a model whose blocks' linear layers are pruned; it has as many weights as before, and zeros in them.

    `method` is a name in `METHODS`; `density` the fraction of weights kept, or "2:4". Activations come from a forward
    pass over `calibration`, token ids (B, T), block by block, so that a block sees the outputs of the pruned ones
    before. InputError for an unknown method, a density outside (0, 1], weights that are not finite, inputs that 4 does
    not divide for "2:4", and a method that needs calibration without tokens.
    """
    require_one_of("pruning method", method, tuple(METHODS))
    if method in CALIBRATED and calibration is None:
        raise InputError(f"{method} needs activations", expected="token ids (B, T) for calibration")

    @torch.no_grad()
    def convert(layer: nn.Linear, inputs: torch.Tensor) -> nn.Linear:
        layer.weight.copy_(METHODS[method](layer.weight, inputs, density))
        return layer

    return convert_linears(copy.deepcopy(model), convert, calibration if method in CALIBRATED else None)
