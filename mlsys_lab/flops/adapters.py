"""Parameters, bytes and FLOPs that a LoRA adapter adds to a model.

LoRA (Hu et al., arXiv:2106.09685, §4.1): a matrix of I inputs and O outputs gets r·(I + O) more parameters, where
r is the rank. D is d_model.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlsys_lab.configs.transformer import TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.validation import require_at_least_one, require_positive

ATTENTION = ("query", "key", "value", "out")
EVERY = (*ATTENTION, "gate", "up", "down")
"""All matrices of a gated block."""


def adapter_parameters(config: TransformerConfig, rank: int, targets: Sequence[str] = ("query", "value")) -> int:
    """Parameters of a LoRA adapter of this rank on the matrices of these names in every block.

    InputError for a name that the blocks have not, experts and latent attention.

    >>> from mlsys_lab.configs.presets import preset
    >>> adapter_parameters(preset("gpt3-175b"), rank=4)  # §4.2: roughly a ten-thousandth
    18874368
    """
    require_at_least_one(rank=rank)
    if config.experts or config.latent:
        raise InputError("adapters of experts and of latent attention are not counted here", got=config.name)
    D, queries, keys = config.d_model, config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    sides = {"query": D + queries, "key": D + keys, "value": D + keys, "out": queries + D}
    sides |= dict.fromkeys(("gate", "up", "down") if config.gated else ("up", "down"), D + config.d_ff)
    for target in targets:
        if target not in sides:
            raise InputError("no matrix of a block", got=target, expected=f"of {', '.join(sides)}")
    return config.n_layers * rank * sum(sides[target] for target in targets)


def adapter_bytes(
    config: TransformerConfig, rank: int, targets: Sequence[str] = ("query", "value"), *, weight_bytes: float = 2
) -> float:
    """Bytes of an adapter: what it takes in memory, and what a step reads for all tokens under it together."""
    require_positive(weight_bytes=weight_bytes)
    return weight_bytes * adapter_parameters(config, rank, targets)


def adapter_flops(config: TransformerConfig, rank: int, targets: Sequence[str] = ("query", "value")) -> float:
    """FLOPs that an adapter adds to a token's forward pass: a multiplication and an addition a parameter."""
    return 2.0 * adapter_parameters(config, rank, targets)
