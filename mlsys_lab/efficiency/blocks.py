"""Walk through a model's blocks: observe what its layers get, and convert its linear layers with it.

Dimension letters: B batch, T tokens, n tokens of all sequences, I inputs of a layer.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import torch
from torch import nn

from mlsys_lab.errors import InputError
from mlsys_lab.models import Transformer

Convert = Callable[[nn.Linear, torch.Tensor], nn.Module]
"""Type of a function that converts a layer, given its input activations (n, I); (0, I) without calibration."""


def linear_layers(module: nn.Module) -> dict[str, nn.Linear]:
    """The linear layers of a module by their names in it."""
    return {name: layer for name, layer in module.named_modules() if isinstance(layer, nn.Linear)}


def convert_linears(model: Transformer, convert: Convert, calibration: torch.Tensor | None = None) -> Transformer:
    """A copy of a model with every linear layer of its blocks converted; embedding, norms and head stay.

    Activations come from a forward pass over `calibration`, token ids (B, T), block by block, so that a block sees the
    outputs of the converted ones before. InputError for calibration without tokens.
    """
    converted = copy.deepcopy(model)
    for block in converted.blocks:
        layers = linear_layers(block)
        inputs = {} if calibration is None else observe(converted, layers, calibration)
        for name, layer in layers.items():
            seen = inputs.get(name, layer.weight.new_empty(0, layer.in_features))
            parent, _, child = name.rpartition(".")
            setattr(block.get_submodule(parent), child, convert(layer, seen))
    return converted


@torch.no_grad()
def observe(model: Transformer, modules: Mapping[str, nn.Module], tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    """First input of each module in a forward pass over token ids (B, T): (n, I) by name; none if it is not called.

    InputError for no tokens.
    """
    if not tokens.numel():
        raise InputError("calibration has no tokens", got=tuple(tokens.shape), expected="token ids (B, T)")
    seen: dict[str, torch.Tensor] = {}

    def keep(name: str) -> Callable[[nn.Module, tuple[torch.Tensor, ...]], None]:
        return lambda _, args: seen.update({name: args[0].flatten(0, -2)})

    hooks = [module.register_forward_pre_hook(keep(name)) for name, module in modules.items()]
    try:
        model(tokens)
    finally:
        for hook in hooks:
            hook.remove()
    return seen
