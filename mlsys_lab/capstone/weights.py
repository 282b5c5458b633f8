"""The capstone's model as weights: which configurations and shapes its stack can train and serve."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from mlsys_lab.configs import TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.models.transformer import Transformer


def check_config(config: TransformerConfig) -> None:
    """Raise InputError unless a configuration is LLaMA's: rotary, RMS norm, SwiGLU, nothing else."""
    sizes = ("n_layers", "d_model", "n_heads", "d_ff", "vocab_size", "context", "n_kv_heads", "head_dim")
    kept = (*sizes, "name", "tied", "rope_theta", "norm_eps")
    wanted = vars(TransformerConfig(**{name: getattr(config, name) for name in kept}))
    if differing := [name for name, value in wanted.items() if getattr(config, name) != value]:
        got, expected = (", ".join(f"{name}={one[name]}" for name in differing) for one in (vars(config), wanted))
        raise InputError("the capstone's model is LLaMA-like", got=got, expected=expected)


def check_weights(config: TransformerConfig, weights: Mapping[str, torch.Tensor]) -> None:
    """Raise InputError unless weights have the names and shapes of `Transformer(config)`."""
    with torch.device("meta"):
        expected = {name: tuple(weight.shape) for name, weight in Transformer(config).named_parameters()}
    found = {name: tuple(weight.shape) for name, weight in weights.items()}
    for name in [*expected, *found]:
        if found.get(name) != expected.get(name):
            got, wanted = (str(one.get(name, "no such weight")) for one in (found, expected))
            raise InputError(f"weights of another shape: {name}", got=got, expected=wanted)
