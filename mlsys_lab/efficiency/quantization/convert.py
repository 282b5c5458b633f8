"""Quantize a model: a copy whose blocks have quantized linear layers."""

from __future__ import annotations

import copy
from functools import partial

import torch

from mlsys_lab.efficiency.blocks import convert_linears
from mlsys_lab.efficiency.quantization.awq import scale_block
from mlsys_lab.efficiency.quantization.recipes import RECIPES, Make, Recipe
from mlsys_lab.efficiency.quantization.rotation import rotate
from mlsys_lab.efficiency.quantization.smoothquant import smooth
from mlsys_lab.errors import InputError, did_you_mean
from mlsys_lab.models import Transformer


@torch.no_grad()
def quantize(model: Transformer, recipe: str | Recipe | Make, calibration: torch.Tensor | None = None) -> Transformer:
    """A copy of a model with every linear layer of its blocks quantized; embedding, norms and head are not.

    `recipe` is a `Recipe`, a name in `RECIPES`, or a function of a layer and its activations (n, I). These come from a
    forward pass over `calibration`, token ids (B, T), in which a block sees the outputs of the quantized ones before.
    InputError for an unknown name, and for a recipe that needs calibration without it.
    """
    make, name = _named(recipe)
    if isinstance(make, Recipe) and not make.needs_calibration:
        calibration = None
    elif (isinstance(make, Recipe) or isinstance(recipe, str)) and (calibration is None or not calibration.numel()):
        raise InputError(f"{name} needs activations", expected="token ids (B, T) for calibration")
    prepare = None
    if isinstance(make, Recipe) and make.method == "awq":
        prepare = partial(scale_block, scheme=make.weights, method=make.clipping)
    return convert_linears(_transform(model, make, calibration), make, calibration, prepare)


def _transform(model: Transformer, make: Recipe | Make, calibration: torch.Tensor | None) -> Transformer:
    """A copy of a model that computes the same function, with the transform of a recipe if it has one."""
    transform = make.transform if isinstance(make, Recipe) else None
    if transform == "smooth":
        assert calibration is not None
        return smooth(model, calibration)
    return rotate(model) if transform == "rotate" else copy.deepcopy(model)


def _named(recipe: str | Recipe | Make) -> tuple[Recipe | Make, str]:
    """A recipe and its name."""
    if not isinstance(recipe, str):
        return recipe, "this recipe"
    if recipe not in RECIPES:
        expected = f"one of {', '.join(RECIPES)}"
        raise InputError(
            "unknown quantization recipe", got=recipe, expected=expected, help=did_you_mean(recipe, RECIPES)
        )
    return RECIPES[recipe], recipe
