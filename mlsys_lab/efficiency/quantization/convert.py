"""Quantize a model: a copy whose blocks have quantized linear layers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import torch
from torch import nn

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
    quantized = copy.deepcopy(model)
    for block in quantized.blocks:
        linears = {name: module for name, module in block.named_modules() if isinstance(module, nn.Linear)}
        inputs = {} if calibration is None else _observe(quantized, linears, calibration)
        for name, linear in linears.items():
            seen = inputs.get(name, linear.weight.new_empty(0, linear.in_features))
            parent, _, child = name.rpartition(".")
            setattr(block.get_submodule(parent), child, make(linear, seen))
    return quantized


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


@torch.no_grad()
def _observe(model: Transformer, linears: Mapping[str, nn.Linear], tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    """Input activations of each layer in a forward pass over tokens (B, T): (n, I) by name."""
    seen: dict[str, torch.Tensor] = {}

    def keep(name: str) -> Callable[[nn.Module, tuple[torch.Tensor, ...]], None]:
        return lambda _, args: seen.update({name: args[0].flatten(0, -2)})

    hooks = [linear.register_forward_pre_hook(keep(name)) for name, linear in linears.items()]
    try:
        model(tokens)
    finally:
        for hook in hooks:
            hook.remove()
    return seen
