"""Walk through a model's blocks: observe what its layers get, and convert its linear layers with it.

Dimension letters: B batch, T tokens, n tokens of all sequences, I inputs of a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

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


@torch.no_grad()
def convert_linears(
    model: Transformer,
    convert: Convert,
    calibration: torch.Tensor | None = None,
    prepare: Callable[[Block, Inputs], Inputs] | None = None,
) -> Transformer:
    """Convert every linear layer of a model's blocks in place; embedding, norms and head stay. Returns the model.

    Activations come from a forward pass over `calibration`, token ids (B, T), in which a block sees the outputs of the
    converted ones before. `prepare` may change a block and its layers' activations first. InputError for calibration
    without tokens, and for sequences longer than the context.
    """
    if calibration is None:
        for block in model.blocks:
            _convert_block(block, convert, {})
        return model
    _require_tokens(calibration, model.config.context)
    x = model.embed(calibration)  # (B, T, D)
    angles, bias = model.position_terms(x)
    for block in model.blocks:
        assert isinstance(block, Block)
        inputs = observe(partial(block, x, angles, bias), linear_layers(block).values())
        _convert_block(block, convert, inputs if prepare is None else prepare(block, inputs))
        x = block(x, angles, bias)
    return model


@torch.no_grad()
def observe(run: Callable[[], object], modules: Iterable[nn.Module]) -> Inputs:
    """First input of each module during a call: (n, I); fewer tokens for an expert, none for a module not called."""
    seen: Inputs = {}

    def keep(module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        seen[module] = args[0].flatten(0, -2)

    hooks = [module.register_forward_pre_hook(keep) for module in modules]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def observe_model(model: Transformer, modules: Iterable[nn.Module], tokens: torch.Tensor) -> Inputs:
    """`observe` during a forward pass over token ids (B, T). InputError without tokens, or beyond the context."""
    _require_tokens(tokens, model.config.context)
    return observe(partial(model, tokens), modules)


def _convert_block(block: nn.Module, convert: Convert, inputs: Inputs) -> None:
    """Replace the linear layers of a block, given the activations (n, I) of those that have any."""
    for name, layer in linear_layers(block).items():
        seen = inputs.get(layer, layer.weight.new_empty(0, layer.in_features))
        parent, _, child = name.rpartition(".")
        setattr(block.get_submodule(parent), child, convert(layer, seen))


def _require_tokens(tokens: torch.Tensor, context: int) -> None:
    """Raise InputError unless these are sequences that fit the context."""
    if not tokens.numel():
        raise InputError("empty calibration", got=tuple(tokens.shape), expected="token ids (B, T)")
    if tokens.ndim != 2 or tokens.shape[1] > context:
        raise InputError("calibration of another shape", got=tuple(tokens.shape), expected=f"(B, T), T up to {context}")
