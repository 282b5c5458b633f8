"""Quantize a model: a copy whose blocks have quantized linear layers."""

from __future__ import annotations

import torch

from mlsys_lab.efficiency.blocks import convert_linears
from mlsys_lab.efficiency.quantization.recipes import RECIPES, Make, Recipe
from mlsys_lab.errors import InputError, did_you_mean
from mlsys_lab.models import Transformer


def quantize(model: Transformer, recipe: str | Recipe | Make, calibration: torch.Tensor | None = None) -> Transformer:
    """A copy of a model with every linear layer of its blocks quantized; embedding, norms and head are not.

    `recipe` is a `Recipe`, a name in `RECIPES`, or a function of a layer and its activations (n, I). These come from a
    forward pass over `calibration`, token ids (B, T), block by block, so that a block sees the outputs of the quantized
    ones before. InputError for an unknown name, and for a recipe that needs calibration without it.
    """
    make, name = _named(recipe)
    needed = make.needs_calibration if isinstance(make, Recipe) else name == "llm-int8"
    if needed and (calibration is None or not calibration.numel()):
        raise InputError(f"{name} needs activations", expected="token ids (B, T) for calibration")
    return convert_linears(model, make, calibration)


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
