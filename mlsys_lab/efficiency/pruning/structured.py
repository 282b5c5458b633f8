"""Structured pruning: remove heads, MLP channels or layers; what remains is a smaller dense transformer.

Dimension letters: L layers, K key/value heads, F d_ff, O outputs and I inputs of a layer, G groups of inputs,
C inputs of a group, n tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import cast

import torch
from torch import nn
from torch.nn import functional as F

from mlsys_lab.efficiency.blocks import observe_model
from mlsys_lab.efficiency.pruning.masks import keep_largest, require_finite
from mlsys_lab.errors import InputError
from mlsys_lab.models import Transformer
from mlsys_lab.models.attention import SelfAttention
from mlsys_lab.models.experts import MLP


def head_importance(model: Transformer, tokens: torch.Tensor) -> torch.Tensor:
    """What attention's output loses with each key/value head and its query heads: ids (B, T) -> (L, K).

    `removal_error` of the output projection. InputError as in `prune_heads`, and for no tokens.
    """
    attentions = _attentions(model)
    inputs = observe_model(model, [attention.out for attention in attentions], tokens)
    width = model.config.n_heads // model.config.n_kv_heads * model.config.head_dim
    return torch.stack([removal_error(a.out.weight, inputs[a.out], width) for a in attentions])


def channel_importance(model: Transformer, tokens: torch.Tensor) -> torch.Tensor:
    """What the MLP's output loses with each channel: ids (B, T) -> (L, F).

    `removal_error` of the down projection: ‖wⱼ‖² · ‖xⱼ‖². InputError for a mixture of experts and no tokens.
    """
    mlps = _mlps(model)
    inputs = observe_model(model, [mlp.down for mlp in mlps], tokens)
    return torch.stack([removal_error(mlp.down.weight, inputs[mlp.down], 1) for mlp in mlps])


def layer_importance(model: Transformer, tokens: torch.Tensor) -> torch.Tensor:
    """How much each block turns the residual stream: 1 - cos(input, output), mean over tokens: ids (B, T) -> (L,).

    Block influence (Men et al. 2024, ShortGPT, arXiv:2403.03853, equation 1). InputError for no tokens.
    """
    stages = [*model.blocks, model.norm]
    inputs = observe_model(model, stages, tokens)
    streams = [inputs[stage] for stage in stages]  # L + 1 of (n, D)
    cosines = [F.cosine_similarity(*pair, dim=-1).mean() for pair in pairwise(streams)]
    return 1 - torch.stack(cosines)


@torch.no_grad()
def removal_error(weight: torch.Tensor, inputs: torch.Tensor, group_size: int) -> torch.Tensor:
    """Squared change of a layer's outputs when a group of inputs is removed: (O, I), (n, I) -> (G,).

    ‖Xg Wgᵀ‖², summed over outputs and tokens, with X and W restricted to the group.
    """
    x, w = (one.double().view(len(one), -1, group_size) for one in (inputs, weight))  # (n, G, C), (O, G, C)
    return (_gram(x) * _gram(w)).sum((1, 2))  # tr Xg Wgᵀ Wg Xgᵀ


def prune_heads(model: Transformer, importance: torch.Tensor, keep: int) -> Transformer:
    """A smaller model that has the `keep` most important key/value heads of each layer, with their query heads.

    importance: (L, K). Heads keep their width, so `head_dim` stays while `n_heads` and `n_kv_heads` shrink. InputError
    for importance of another shape, fewer than 1 head or more than there are, and models whose heads are not
    independent: latent attention, ALiBi (a head's slope depends on how many there are), norms over all heads.
    """
    c = model.config
    kept = _most_important(importance, (c.n_layers, c.n_kv_heads), keep)
    smaller = copy.deepcopy(model)
    for attention, heads in zip(_attentions(smaller), kept, strict=True):
        queries = _spread(heads, c.n_heads // c.n_kv_heads * c.head_dim)
        keys = _spread(heads, c.head_dim)
        attention.query, attention.out = _take_outputs(attention.query, queries), _take_inputs(attention.out, queries)
        attention.key, attention.value = _take_outputs(attention.key, keys), _take_outputs(attention.value, keys)
    smaller.config = replace(c, n_heads=keep * c.n_heads // c.n_kv_heads, n_kv_heads=keep)
    return smaller


def prune_channels(model: Transformer, importance: torch.Tensor, keep: int) -> Transformer:
    """A smaller model that has the `keep` most important channels of each layer's MLP.

    importance: (L, F). InputError for importance of another shape, fewer than 1 channel or more than there are, and a
    mixture of experts.
    """
    c = model.config
    kept = _most_important(importance, (c.n_layers, c.d_ff), keep)
    smaller = copy.deepcopy(model)
    for mlp, channels in zip(_mlps(smaller), kept, strict=True):
        mlp.gate = None if mlp.gate is None else _take_outputs(mlp.gate, channels)
        mlp.up, mlp.down = _take_outputs(mlp.up, channels), _take_inputs(mlp.down, channels)
    smaller.config = replace(c, d_ff=keep)
    return smaller


def prune_layers(model: Transformer, importance: torch.Tensor, keep: int) -> Transformer:
    """A smaller model that has the `keep` most important layers, in their order.

    importance: (L,). InputError for importance of another shape, fewer than 1 layer or more than there are, and a
    mixture of experts whose first layers are dense.
    """
    c = model.config
    if c.experts is not None and c.experts.dense_layers:
        raise InputError("layers of two kinds", got=c.name, expected="an MLP or experts in every layer")
    (kept,) = _most_important(importance[None], (1, c.n_layers), keep)
    smaller = copy.deepcopy(model)
    smaller.blocks = nn.ModuleList(smaller.blocks[layer] for layer in kept.tolist())
    smaller.config = replace(c, n_layers=keep)
    return smaller


def _most_important(importance: torch.Tensor, shape: tuple[int, int], keep: int) -> list[torch.Tensor]:
    """Positions of the `keep` largest of each row, in rising order."""
    if importance.shape != shape:
        raise InputError("importance of another model", got=tuple(importance.shape), expected=shape)
    require_finite("importance scores", importance)
    if not 1 <= keep <= shape[1]:
        raise InputError("number to keep out of range", got=keep, expected=f"1 to {shape[1]}")
    return [row.nonzero()[:, 0] for row in keep_largest(importance, keep)]


def _attentions(model: Transformer) -> Sequence[SelfAttention]:
    c = model.config
    shared = {"latent attention": c.latent, "ALiBi": c.position == "alibi", "a norm of all heads": c.qk_norm_all_heads}
    for what, applies in shared.items():
        if applies:
            raise InputError("heads depend on each other", got=f"{what} in {c.name}", expected="independent heads")
    return [cast(SelfAttention, block.attention) for block in model.blocks]


def _mlps(model: Transformer) -> Sequence[MLP]:
    if model.config.experts is not None:
        raise InputError("channels of a mixture of experts", got=model.config.name, expected="one MLP in every layer")
    return [cast(MLP, block.mlp) for block in model.blocks]


def _spread(groups: torch.Tensor, width: int) -> torch.Tensor:
    """Positions of groups of `width` neighbours: (G,) -> (G·width,)."""
    return (groups[:, None] * width + torch.arange(width, device=groups.device)).flatten()


def _gram(x: torch.Tensor) -> torch.Tensor:
    """Inner products of the columns of each group: (n, G, C) -> (G, C, C)."""
    return torch.einsum("ngi,ngj->gij", x, x)


def _take_outputs(linear: nn.Linear, kept: torch.Tensor) -> nn.Linear:
    return _new_linear(linear.weight[kept], None if linear.bias is None else linear.bias[kept])


def _take_inputs(linear: nn.Linear, kept: torch.Tensor) -> nn.Linear:
    return _new_linear(linear.weight[:, kept], linear.bias)


def _new_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Linear:
    """A linear layer with copies of weights (O, I) and bias (O,)."""
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight.detach().clone())
    if bias is not None:
        linear.bias = nn.Parameter(bias.detach().clone())
    return linear
