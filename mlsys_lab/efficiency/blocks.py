"""Walk through a model's blocks: observe what its layers get, and convert its linear layers with it.

Dimension letters: B batch, T tokens, n tokens of all sequences, I inputs of a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn

from mlsys_lab.errors import InputError
from mlsys_lab.models import Transformer
from mlsys_lab.models.transformer import Block

Convert = Callable[[nn.Linear, torch.Tensor], nn.Module]
"""Type of a function that converts a layer, given its input activations (n, I); (0, I) without calibration."""
Inputs = dict[nn.Module, torch.Tensor]
"""Input activations (n, I) of modules."""


def linear_layers(module: nn.Module) -> dict[str, nn.Linear]:
    """The linear layers of a module by their names in it."""
    return {name: layer for name, layer in module.named_modules() if isinstance(layer, nn.Linear)}


def convert_linears(
    model: Transformer,
    convert: Convert,
    calibration: torch.Tensor | None = None,
    prepare: Callable[[Block, Inputs], Inputs] | None = None,
) -> Transformer:
    """Convert every linear layer of a model's blocks in place; embedding, norms and head stay. Returns the model.

    Activations come from a forward pass over `calibration`, token ids (B, T), block by block, so that a block sees the
    outputs of the converted ones before. `prepare` may change a block and its layers' activations first. InputError for
    calibration without tokens.
    """
    for block in model.blocks:
        assert isinstance(block, Block)
        layers = linear_layers(block)
        inputs = {} if calibration is None else observe(model, layers.values(), calibration)
        if prepare is not None:
            inputs = prepare(block, inputs)
        for name, layer in layers.items():
            seen = inputs.get(layer, layer.weight.new_empty(0, layer.in_features))
            parent, _, child = name.rpartition(".")
            setattr(block.get_submodule(parent), child, convert(layer, seen))
    return model


@torch.no_grad()
def observe(model: Transformer, modules: Iterable[nn.Module], tokens: torch.Tensor) -> Inputs:
    """First input of each module in a forward pass over token ids (B, T): (n, I); fewer for an expert.

    A module that is not called has none. InputError for no tokens.
    """
    if not tokens.numel():
        raise InputError("empty calibration", got=tuple(tokens.shape), expected="token ids (B, T)")
    seen: Inputs = {}

    def keep(module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        seen[module] = args[0].flatten(0, -2)

    hooks = [module.register_forward_pre_hook(keep) for module in modules]
    try:
        model(tokens)
    finally:
        for hook in hooks:
            hook.remove()
    return seen
