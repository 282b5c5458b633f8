"""Scale a channel up where it is produced and down where it is consumed: the model computes the same function.

Dimension letter: I inputs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from mlsys_lab.models.attention import SelfAttention
from mlsys_lab.models.experts import MLP, MixtureOfExperts
from mlsys_lab.models.latent import LatentSelfAttention
from mlsys_lab.models.transformer import Block


class Link(NamedTuple):
    """Linear layers with one common input, and the norm or linear layer whose output it is, up to a function that
    scaling its channels commutes with."""

    producer: nn.Module
    consumers: tuple[nn.Linear, ...]


def norm_links(block: Block) -> list[Link]:
    """The norms of a block that have weights, each with the linear layers that read it."""
    attention, mlp = _readers(block.attention), _readers(block.mlp)
    if block.mlp_norm is None:
        found = [Link(block.attention_norm, attention + mlp)]
    else:
        found = [Link(block.attention_norm, attention), Link(block.mlp_norm, mlp)]
    return [link for link in found if getattr(link.producer, "weight", None) is not None]


def inner_links(block: Block) -> list[Link]:
    """Pairs of linear layers inside a block: value and output projection, if every query head has its own values, and
    the up- and down-projection of a gated or ReLU MLP."""
    found, attention = [], block.attention
    if isinstance(attention, SelfAttention) and attention.value.out_features == attention.out.in_features:
        found.append(Link(attention.value, (attention.out,)))
    mlps = [module for module in block.mlp.modules() if isinstance(module, MLP)]
    return found + [Link(mlp.up, (mlp.down,)) for mlp in mlps if mlp.gate is not None or mlp.activation is F.relu]


@torch.no_grad()
def scale_input(link: Link, scale: torch.Tensor) -> None:
    """Divide the producer's output channels by a scale (I,), and multiply the consumers' weights by it, in place."""
    for parameter in link.producer.parameters():  # weight (I,) or (I, ...), and a bias (I,)
        parameter.div_(scale.to(parameter.dtype).view(-1, *[1] * (parameter.ndim - 1)))
    for consumer in link.consumers:
        consumer.weight *= scale.to(consumer.weight.dtype)


def readers(block: Block) -> list[nn.Linear]:
    """The linear layers that read the residual stream, through a norm or not."""
    return [*_readers(block.attention), *_readers(block.mlp)]


def writers(block: Block) -> list[nn.Linear]:
    """The linear layers whose outputs a block adds to the residual stream."""
    mlps = [module for module in block.mlp.modules() if isinstance(module, MLP)]
    return [block.attention.out, *(mlp.down for mlp in mlps)]


def _readers(module: nn.Module) -> tuple[nn.Linear, ...]:
    """The linear layers that multiply the input of an attention or MLP."""
    if isinstance(module, SelfAttention):
        return module.query, module.key, module.value
    if isinstance(module, LatentSelfAttention):
        return (module.query if module.query_down is None else module.query_down), module.latent_down
    if isinstance(module, MixtureOfExperts):
        experts = (*module.experts, *module.shared)
        return module.router, *(reader for expert in experts for reader in _readers(expert))
    assert isinstance(module, MLP)
    return (module.up,) if module.gate is None else (module.gate, module.up)
