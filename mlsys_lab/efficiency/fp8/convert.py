"""Convert a model to training in 8 bits, and say which of its tensors stay in high precision."""

from __future__ import annotations

import copy

from torch import nn

from mlsys_lab.efficiency.fp8.linear import Fp8Linear
from mlsys_lab.efficiency.fp8.recipes import Recipe, find_recipe
from mlsys_lab.models import Transformer


def convert(model: Transformer, recipe: Recipe | str) -> Transformer:
    """A copy of a model whose blocks train in 8 bits; `recipe` may be a name in `RECIPES`.

    Attention's projections and the MLPs are converted: nearly all FLOPs of a large model. Embeddings, norms, the head
    and routers of experts stay in high precision, as do scores and weighted sums of attention (DeepSeek-V3,
    arXiv:2412.19437, §3.3.1): they are a small part of the work, and errors in them reach every token's loss. Weights
    of converted layers stay in fp32 too, so that an optimizer and a checkpoint find the parameters by the names
    that they had. InputError for an unknown name.
    """
    recipe = find_recipe(recipe) if isinstance(recipe, str) else recipe
    converted = copy.deepcopy(model)
    for name, linear in find_layers(converted).items():
        parent, _, child = name.rpartition(".")
        setattr(converted.get_submodule(parent), child, Fp8Linear(linear, recipe))
    return converted


def find_layers(model: Transformer) -> dict[str, nn.Linear]:
    """Layers whose products are computed in 8 bits after `convert`, by name: (I,) to (O,) in the blocks of a model."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and name.startswith("blocks.") and not name.endswith(".router")
    }


def high_precision_parameters(model: Transformer) -> list[str]:
    """Names of the parameters that enter no product of 8 bits: embeddings, norms, biases, routers and the head."""
    weights = {f"{name}.weight" for name in find_layers(model)}
    return [name for name, _ in model.named_parameters() if name not in weights]
